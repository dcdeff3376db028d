"""Trains chains of fully connected layers: many clients in one stack, with gradients in closed form.

`trace.py` finds the chain in a module and `recognise.py` checks it by numbers. `groups.py` puts clients of the same
shapes into a stack, `stack.py` trains it: with the first layer's weights held, or in dual form (`inputs.py`). On a CPU
plain SGD of small nets takes the same steps in C++ (`compiled.py`, `steps.cpp`), if that is compiled.
"""
