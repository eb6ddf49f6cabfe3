import humanize
import lab

print('lab', lab.VERSION, humanize.__name__)
