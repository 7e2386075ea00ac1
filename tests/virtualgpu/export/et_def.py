"""Chakra's messages (et_def.proto, the parts that we write), built without its compiler."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ENUMS = {"NodeType": ("INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE",
                      "COMP_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE")}
MESSAGES = {
    "AttributeProto": {1: ("name", "string"), 2: ("doc_string", "string"),
                       3: ("double_val", "double"), 9: ("int64_val", "int64"),
                       27: ("bool_val", "bool"), 29: ("string_val", "string")},
    "GlobalMetadata": {1: ("version", "string"), 2: ("attr", "*AttributeProto")},
    "Node": {1: ("id", "uint64"), 2: ("name", "string"), 3: ("type", "NodeType"),
             4: ("ctrl_deps", "*uint64"), 5: ("data_deps", "*uint64"),
             6: ("start_time_micros", "uint64"), 7: ("duration_micros", "uint64"),
             10: ("attr", "*AttributeProto")}}


def messages() -> dict[str, type]:
    """The classes by name."""
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg",
                                              syntax="proto3")
    for name, values in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in fields.items():
            made = message.field.add(name=field, number=number)
            made.label = made.LABEL_REPEATED if kind[0] == "*" else made.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            if kind in MESSAGES or kind in ENUMS:
                made.type = made.TYPE_MESSAGE if kind in MESSAGES else made.TYPE_ENUM
                made.type_name = f".ChakraProtoMsg.{kind}"
            else:
                made.type = getattr(made, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}")) for name in MESSAGES}
