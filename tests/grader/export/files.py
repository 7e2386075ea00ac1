"""Files as Canvas and Moodle write them, with what makes real ones difficult: umlauts, commas in
names, two people with one name, a name like a formula, columns that are not ours."""

from __future__ import annotations

import csv
import io

BOM = "﻿"
CANVAS = [
    ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "Notes", "Essay, first (10)",
     "90_small (4711)", "Assignments Current Score", "Final Score (2030)"],
    ["", "", "", "", "", "", "", "Manual Posting", "", ""],
    ["    Points Possible", "", "", "", "", "(read only)", "20", "5", "(read only)",
     "(read only)"],
    ["Lovelace, Ada", "101", "s-1", "ada", 'Tue, "early"', "", "18.5", "", "92.5", "92.5"],
    ["Hopper, Grace", "102", "s-2", "gh12", "Tue", "=1+1", "", "2", "", ""],
    ["Müller, José", "103", "s-3", "jose@uni.test", "Wed", "", "EX", "", "", ""],
    ["Muller, Jose", "104", "s-4", "muller@uni.test", "Wed", "", "", "N/A", "", ""],
    ["=HYPERLINK(evil)", "105", "-s5", "@mallory", "Wed", "", "3", "4", "", ""],
    ["Student, Test", "999", "", "0123456789abcdef0123456789abcdef01234567", "Tue", "", "", "", "",
     ""],
]
WORKSHEET = [
    ["Identifier", "Full name", "ID number", "Email address", "Status", "Grade", "Maximum grade",
     "Grade can be changed", "Last modified (submission)", "Last modified (grade)",
     "Feedback comments"],
    ["Participant 5001", "Ada Lovelace", "", "ada@uni.test", "Submitted for grading", "", "5.00",
     "Yes", "Saturday, 31 January 2026, 9:14 PM", "-", ""],
    ["Participant 5002", "Grace Hopper", "grace", "", "Submitted for grading - Graded", "2.00",
     "5.00", "Yes", "Saturday, 31 January 2026, 9:15 PM", "Sunday, 1 February 2026, 8:00 AM",
     "Good; \"see\" page 2,\nand talk to me"],
    ["Participant 5003", "José_Müller", "", "Jose@Uni.test", "No submission", "", "5.00", "No", "-",
     "-", ""],
    ["Participant 5004", "Jose Muller", "", "other@uni.test", "No submission", "", "5.00", "Yes",
     "-", "-", "'=cmd|' /C calc'!A0"],
]
GRADES = [
    ["First name", "Last name", "ID number", "Email address", "Assignment: 90_small (Real)",
     "Assignment: 90_small (Percentage)", "Quiz: One: two (Real)", "Course total (Real)",
     "Last downloaded from this course"],
    ["Ada", "Lovelace", "", "ada@uni.test", "-", "-", "8,50", "8,50", "1769900000"],
    ["Grace", "Hopper", "grace", "", "2,00", "40,00 %", "-", "2,00", "1769900000"],
]


def csv_bytes(rows: list[list[str]], delimiter: str = ",", end: str = "\n", bom: bool = False,
              quote: int = csv.QUOTE_MINIMAL, encoding: str = "utf-8") -> bytes:
    """The rows as a file of that dialect."""
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quote).writerows(rows)
    return (BOM * bom + text.getvalue()).encode(encoding)


DIALECTS = {
    "commas": {}, "CRLF and a BOM": {"end": "\r\n", "bom": True},
    "semicolons": {"delimiter": ";"}, "all quoted": {"quote": csv.QUOTE_ALL, "end": "\r\n"},
    "UTF-16": {"delimiter": "\t", "bom": True, "encoding": "utf-16-le"},
    "Windows-1252": {"delimiter": ";", "end": "\r\n", "encoding": "cp1252"},
}
