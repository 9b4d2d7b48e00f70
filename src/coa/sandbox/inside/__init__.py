"""What runs on the other side of the wall: the launcher, the warm interpreter, and the process of each run.

Standard library only, relative imports only: this folder is mounted into the sandbox and run there, possibly by another
interpreter than the one coa runs in. Nothing here may import coa.
"""
