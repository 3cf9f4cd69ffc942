"""Descriptors and other numbers of AMQP 1.0, by the names that the standard gives them."""

from __future__ import annotations

# Performatives: AMQP 2.7.
OPEN = 0x10
BEGIN = 0x11
ATTACH = 0x12
FLOW = 0x13
TRANSFER = 0x14
DISPOSITION = 0x15
DETACH = 0x16
END = 0x17
CLOSE = 0x18

ERROR = 0x1D  # AMQP 2.8.14

# Delivery states: AMQP 3.4.
ACCEPTED = 0x24
REJECTED = 0x25
RELEASED = 0x26
MODIFIED = 0x27

# Termini: AMQP 3.5.
SOURCE = 0x28
TARGET = 0x29

# SASL frames: AMQP 5.3.3.
SASL_MECHANISMS = 0x40
SASL_INIT = 0x41
SASL_OUTCOME = 0x44

# Sections of a message: AMQP 3.2.
HEADER = 0x70
DELIVERY_ANNOTATIONS = 0x71
MESSAGE_ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
DATA = 0x75
AMQP_SEQUENCE = 0x76
AMQP_VALUE = 0x77
FOOTER = 0x78

# Roles: AMQP 2.8.1, a boolean.
SENDER = False
RECEIVER = True

BATCH = 0x80013700
"""The message format of a batch: each data section is one encoded message. Source: the protocol guide."""
