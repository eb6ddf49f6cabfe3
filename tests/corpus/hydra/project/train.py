import hydra
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    print("lr", cfg.optimizer.lr)
    print("batch", cfg.batch)


if __name__ == "__main__":
    main()
