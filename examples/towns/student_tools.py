"""The team's two tools for the student: the same functions as tools of coa."""

from towns import calculator, lookup

from coa import Form, Observation, Shape


class Lookup:
    about = "looks up facts about towns."
    shape = Shape(form=Form.LINE)
    timeout_s = 10.0

    async def call(self, arguments, context):
        return Observation(lookup(arguments["text"]))


class Calculator:
    about = "calculates."
    shape = Shape(form=Form.LINE)
    timeout_s = 10.0

    async def call(self, arguments, context):
        return Observation(calculator(arguments["text"]))
