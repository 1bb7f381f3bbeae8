package metrics

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/usage"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// rule has every group of metrics.
const rule = `{"name":"r","limits":["9/1h"],"scope":"cluster","block":"1h",` +
	`"settle":{"to":"price","prices":[{"model":"*","input":1,"output":1}]}}`

// number sets each number in v to one that no other has, and appends which field it is of: number n is of fields[n-1].
func number(v reflect.Value, field string, fields []string) []string {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fields = number(v.Field(i), field+v.Type().Field(i).Name, fields)
		}
	case reflect.Array:
		for i := range v.Len() {
			fields = number(v.Index(i), field, fields)
		}
	default:
		fields = append(fields, field)
		v.Set(reflect.ValueOf(len(fields)).Convert(v.Type()))
	}
	return fields
}

// Each tells every number once, and each by a name of its own that begins with its field's. But of an answer that was
// read there is no metric that says why not.
func TestEachTellsEveryNumber(t *testing.T) {
	m := Of(&hosttest.Policy(t, rule).Rules[0])
	fields := number(reflect.ValueOf(&m.Counts).Elem(), "", nil)
	fields = number(reflect.ValueOf(m.Priced).Elem(), "", fields)
	var want, got []uint64
	for i := range fields {
		if n := uint64(i + 1); n != m.Unread[usage.None] {
			want = append(want, n)
		}
	}
	names := map[string]bool{}
	m.Each(func(name string, count uint64) {
		got = append(got, count)
		names[name] = true
		plain := strings.ReplaceAll(name, "_", "")
		require.Truef(t, strings.HasPrefix(plain, strings.ToLower(fields[count-1])), "%s is %s", fields[count-1], name)
	})
	require.ElementsMatch(t, want, got)
	require.Len(t, names, len(got))
}

// The requests of overrides with one name are counted together. No name, or one beyond the bound, is counted nowhere.
func TestCountsByTheNamesOfOverrides(t *testing.T) {
	overrides := []string{`{"key":["nameless"],"limits":["9/1h"]}`, `{"name":"n0","key":["twin"],"limits":["9/1h"]}`}
	const first = 2 // of those that follow
	for i := range policy.MaxCountedNames + 1 {
		overrides = append(overrides, fmt.Sprintf(`{"name":"n%d","key":["u%d"],"limits":["9/1h"]}`, i, i))
	}
	m := Of(&hosttest.Policy(t, `{"name":"r","key":[{"header":"u"}],"limits":["9/1h"],`+
		`"overrides":[`+strings.Join(overrides, ",")+`]}`).Rules[0])
	for override := -1; override < len(overrides); override++ {
		m.CountsOf(override).Denied++
	}
	require.Len(t, m.Named, policy.MaxCountedNames)
	for i, n := range m.Named {
		want := Named{Name: fmt.Sprint("n", i), Denied: 1}
		if i == 0 {
			want.Denied = 2 // and its twin's
		}
		require.Equal(t, want, n)
		require.Same(t, &m.Named[i], m.CountsOf(first+i))
	}
	require.EqualValues(t, 3, m.discarded.Denied, "of no override, the nameless one, and the last")
}

// What a stored hit has done to its page is added up.
func TestWhatStoringAHitCounts(t *testing.T) {
	m := Of(&hosttest.Policy(t, rule).Rules[0])
	m.NoteStored(&state.Findings{})
	require.Equal(t, Counts{}, m.Counts)
	m.NoteStored(&state.Findings{Evicted: true, Ended: 2, Blocked: true})
	m.NoteStored(&state.Findings{Ended: 1})
	require.Equal(t, Counts{Evicted: 1, WindowResets: 3, BlocksBegun: 1}, m.Counts)
}

// The tokens of answers are added up by their classes, for a rule that charges prices.
func TestTokensOfRulesWithPrices(t *testing.T) {
	m := Of(&hosttest.Policy(t, rule).Rules[0])
	m.NoteTokens(policy.Tokens{Input: 1, Cached: 2, CacheWrite: 3, Output: 4})
	m.NoteTokens(policy.Tokens{Input: 10, Cached: 20, CacheWrite: 30, Output: 40})
	require.Equal(t, policy.Tokens{Input: 11, Cached: 22, CacheWrite: 33, Output: 44}, m.Priced.Tokens)

	m = Of(&hosttest.Policy(t, `{"name":"r","limits":["9/1h"],"settle":{"to":"tokens"}}`).Rules[0])
	m.NoteTokens(policy.Tokens{Input: 1})
	require.Nil(t, m.Priced)
}
