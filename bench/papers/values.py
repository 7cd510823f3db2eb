"""The values of the papers' figures and tables, from the *.json files beside this module.

What: PAPERS has each document by its short name, with its figures in order; value() looks one value up.
A value has a key that is unique in its figure, a unit, and a mark: S stated in the text or a table, C computed
by the document (a bound), D derived by us from such values. headline: the documents' own claims rest on it;
input: the model of the machine takes it, so that it predicts nothing. Rates are MB/s of 2^20 bytes.
Errors: KeyError for a value that the documents do not give.
"""

import json
import os

HERE = os.path.dirname(os.path.realpath(__file__))
NAMES = ("thesis", "ipdps-2007", "synchronized-sends", "clan", "dsfr")
MARKS = {"S": "stated", "C": "computed by the document", "D": "derived"}


def _read(name):
    with open(os.path.join(HERE, name + ".json"), encoding="utf-8") as file:
        return json.load(file)


PAPERS = {name: _read(name) for name in NAMES}


def figure(paper, name):
    for found in PAPERS[paper]["figures"]:
        if found["figure"] == name:
            return found
    raise KeyError("%s has no figure %s" % (paper, name))


def entry(paper, name, key):
    for found in figure(paper, name)["values"]:
        if found["key"] == key:
            return found
    raise KeyError("%s, %s has no value %s" % (paper, name, key))


def value(paper, name, key):
    return entry(paper, name, key)["value"]
