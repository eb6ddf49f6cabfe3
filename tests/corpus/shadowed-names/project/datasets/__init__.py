from .toy import load
