"""The hottest code in two forms: compiled by mypyc, or interpreted where there is no C compiler."""
