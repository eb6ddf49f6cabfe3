"""Job + facts → Plan, in one place for every backend. Reads the project's files and asks engines and clusters what
they have; changes nothing.
"""
