import humanize

print(humanize.intcomma(1000000))
