package metrics

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

// rule has every group of metrics.
const rule = `{"name":"r","limits":["9/1h"],"scope":"cluster","block":"1h",` +
	`"settle":{"to":"price","prices":[{"model":"*","input":1,"output":1}]}}`

// number sets each number in v to one that no other has.
func number(v reflect.Value, next *uint64) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			number(v.Field(i), next)
		}
	case reflect.Array:
		for i := range v.Len() {
			number(v.Index(i), next)
		}
	default:
		*next++
		v.Set(reflect.ValueOf(*next).Convert(v.Type()))
	}
}

// Each tells every number once, in the order of the fields, and each by a name of its own. But of an answer that was
// read there is no metric that says why not.
func TestEachTellsEveryNumber(t *testing.T) {
	m := Of(&hosttest.Policy(t, rule).Rules[0])
	var last uint64
	number(reflect.ValueOf(&m.Counts).Elem(), &last)
	number(reflect.ValueOf(m.Priced).Elem(), &last)
	var want, got []uint64
	for n := range last {
		if n+1 != m.Unread[0] {
			want = append(want, n+1)
		}
	}
	names := map[string]bool{}
	m.Each(func(name string, count uint64) {
		got = append(got, count)
		names[name] = true
	})
	require.Equal(t, want, got)
	require.Len(t, names, len(got))
}
