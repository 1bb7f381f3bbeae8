package quota

import (
	"maps"
	"reflect"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// unpublished are fields that do not travel.
var unpublished = map[string]bool{"Stamp": true, "FillNs": true, "Pays": true}

// Shape returns a message as lists and maps by published names, without what is 0
// or empty, so that it can be compared with what a protobuf library has read.
func Shape(m any) any { return shape(reflect.ValueOf(m)) }

func shape(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer:
		return shape(v.Elem())
	case reflect.Struct:
		fields := map[string]any{}
		for i := range v.NumField() {
			f, name := v.Field(i), v.Type().Field(i).Name
			if v.Type().Field(i).Anonymous {
				maps.Copy(fields, shape(f).(map[string]any))
				continue
			}
			if unpublished[name] || isEmpty(f) {
				continue
			}
			fields[snake(name)] = shape(f)
		}
		return fields
	case reflect.Array:
		b := make([]byte, v.Len())
		reflect.Copy(reflect.ValueOf(b), v)
		return b
	case reflect.Slice:
		var items []any
		for i := range v.Len() {
			items = append(items, shape(v.Index(i)))
		}
		return items
	case reflect.Int64:
		return v.Int()
	case reflect.String:
		return v.String()
	case reflect.Bool:
		return true
	default:
		return v.Uint()
	}
}

// isEmpty reports whether proto3 leaves the field out. A key is always there.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice:
		return v.Len() == 0
	case reflect.Array:
		return false
	default:
		return v.IsZero()
	}
}

func snake(name string) string {
	if name == "ID" {
		return "id"
	}
	var b strings.Builder
	for i, c := range name {
		if i > 0 && c >= 'A' && c <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(c)
	}
	return strings.ToLower(b.String())
}

// dump is Shape for a message that a protobuf library has read.
func dump(m protoreflect.Message) any {
	fields := map[string]any{}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !f.IsList() {
			fields[string(f.Name())] = scalar(v)
			return true
		}
		var items []any
		for i := range v.List().Len() {
			items = append(items, dump(v.List().Get(i).Message()))
		}
		fields[string(f.Name())] = items
		return true
	})
	return fields
}

func scalar(v protoreflect.Value) any {
	switch n := v.Interface().(type) {
	case uint32:
		return uint64(n)
	case protoreflect.EnumNumber:
		return uint64(n)
	default:
		return n
	}
}
