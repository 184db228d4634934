"""The command-line tool that the wheel ships."""
import os
import sys

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tidegate")


def main():
    os.execv(PATH, [PATH] + sys.argv[1:])
