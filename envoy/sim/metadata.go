package sim

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// metadataProperty answers what is under "metadata": all of it is the message
// envoy.config.core.v3.Metadata, one value in it is bytes without a type.
func metadataProperty(all map[string]*structpb.Struct, path []byte, more bool) (string, status) {
	if !more {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&corev3.Metadata{FilterMetadata: all})
		if err != nil {
			return "", serializationFailed
		}
		return string(b), statusOK
	}
	field, rest, more := bytes.Cut(path, []byte{0})
	if string(field) != "filter_metadata" || !more {
		return "", notFound
	}
	namespace, rest, more := bytes.Cut(rest, []byte{0})
	fields, ok := all[string(namespace)]
	if !ok {
		return "", notFound
	}
	value := structpb.NewStructValue(fields)
	for more {
		var name []byte
		name, rest, more = bytes.Cut(rest, []byte{0})
		if value, ok = inside(value, string(name)); !ok {
			return "", notFound
		}
	}
	return serialize(value)
}

func inside(value *structpb.Value, name string) (*structpb.Value, bool) {
	switch kind := value.GetKind().(type) {
	case *structpb.Value_StructValue:
		v, ok := kind.StructValue.GetFields()[name]
		return v, ok
	case *structpb.Value_ListValue:
		list := kind.ListValue.GetValues()
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(list) {
			return list[i], true
		}
	}
	return nil, false
}

// serialize writes a value as Envoy does: a text as it is, a number as a
// double, a bool as a byte, what holds others as pairs.
func serialize(value *structpb.Value) (string, status) {
	switch kind := value.GetKind().(type) {
	case *structpb.Value_StringValue:
		return kind.StringValue, statusOK
	case *structpb.Value_NumberValue:
		return string(binary.LittleEndian.AppendUint64(nil, math.Float64bits(kind.NumberValue))), statusOK
	case *structpb.Value_BoolValue:
		if kind.BoolValue {
			return "\x01", statusOK
		}
		return "\x00", statusOK
	case *structpb.Value_StructValue:
		fields := kind.StructValue.GetFields()
		names := make([]string, 0, len(fields))
		for name := range fields {
			names = append(names, name)
		}
		slices.Sort(names)
		var pairs headers
		for _, name := range names {
			text, st := serialize(fields[name])
			if st != statusOK {
				return "", st
			}
			pairs = append(pairs, [2]string{name, text})
		}
		return string(pairs.marshal(nil)), statusOK
	case *structpb.Value_ListValue:
		var pairs headers
		for _, item := range kind.ListValue.GetValues() {
			text, st := serialize(item)
			if st != statusOK {
				return "", st
			}
			pairs = append(pairs, [2]string{text, ""})
		}
		return string(pairs.marshal(nil)), statusOK
	}
	return "", serializationFailed
}
