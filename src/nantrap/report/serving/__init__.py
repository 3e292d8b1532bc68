"""The live page: a read-only web server over a folder of runs. Needs `nantrap[serve]`.

journals   steps from anywhere in a journal of any size, without reading it whole
state      how a run is doing, in one word
index      which runs there are, their summaries and their curves; SQLite as a cache that may be deleted at any time
guarding   access control: host names, other sites, a token
app        the pages and the events
"""
