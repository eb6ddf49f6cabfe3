import click


@click.group()
def cli():
    """Train and evaluate."""


@cli.command()
@click.option("--epochs", default=1)
def train(epochs):
    for epoch in range(1, epochs + 1):
        click.echo(f"epoch {epoch}")


if __name__ == "__main__":
    cli()
