"""Job + facts → Plan, in one place for every backend. Reads the project's files and the facts of engines and
clusters; changes nothing.
"""
