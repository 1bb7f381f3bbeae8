package sim

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The rules of shared_data.cc in proxy-wasm-cpp-host, step by step.
func TestStoreRules(t *testing.T) {
	type step struct {
		set   string // key to set, else get is read
		cas   uint32
		value string
		ok    bool
		get   string
		want  uint32 // number of the last write
	}
	cases := map[string]struct {
		next  uint32
		steps []step
	}{
		"a key that does not exist is created whatever the number": {1, []step{
			{set: "a", cas: 0xFFFFFFFE, value: "1", ok: true}, {get: "a", value: "1", ok: true, want: 1},
			{set: "b", cas: 7, value: "2", ok: true}, {get: "b", value: "2", ok: true, want: 2},
		}},
		"a number that is never issued is create-if-absent": {1, []step{
			{set: "a", cas: 0xFFFFFFFE, value: "1", ok: true}, {set: "a", cas: 0xFFFFFFFE, value: "2"},
			{get: "a", value: "1", ok: true, want: 1},
		}},
		"zero overwrites": {1, []step{
			{set: "a", value: "1", ok: true}, {set: "a", value: "2", ok: true}, {get: "a", value: "2", ok: true, want: 2},
		}},
		"the number must be that of the last write": {1, []step{
			{set: "a", value: "1", ok: true}, {set: "a", cas: 1, value: "2", ok: true}, {set: "a", cas: 1, value: "3"},
			{get: "a", value: "2", ok: true, want: 2},
		}},
		"one counter for all keys, and a mismatch takes no number": {1, []step{
			{set: "a", value: "1", ok: true}, {set: "b", value: "1", ok: true}, {set: "a", cas: 9, value: "2"},
			{set: "a", cas: 1, value: "3", ok: true}, {get: "a", value: "3", ok: true, want: 3}, {get: "b", value: "1", ok: true, want: 2},
		}},
		"the counter skips zero": {math.MaxUint32, []step{
			{set: "a", value: "1", ok: true}, {get: "a", value: "1", ok: true, want: math.MaxUint32},
			{set: "a", cas: math.MaxUint32, value: "2", ok: true}, {get: "a", value: "2", ok: true, want: 1},
		}},
		"an empty value is a value": {1, []step{
			{get: "a"}, {set: "a", ok: true}, {get: "a", ok: true, want: 1},
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := NewStore()
			s.next = c.next
			ns := s.Namespace("vm")
			for i, st := range c.steps {
				if st.get == "" {
					require.Equal(t, st.ok, ns.Set(st.set, []byte(st.value), st.cas), "step %d", i)
					continue
				}
				value, cas, ok := ns.Get(st.get)
				require.Equal(t, st.ok, ok, "step %d", i)
				require.Equal(t, st.value, string(value), "step %d", i)
				require.Equal(t, st.want, cas, "step %d", i)
			}
		})
	}
}

func TestStoreNamespaces(t *testing.T) {
	s := NewStore()
	a, b := s.Namespace("a"), s.Namespace("b")
	a.hold()
	b.hold()
	require.True(t, a.Set("k", []byte("12"), 0))
	require.Equal(t, 0, b.Len())
	_, _, ok := b.Get("k")
	require.False(t, ok)
	require.True(t, b.Set("k", nil, 0))
	_, cas, _ := b.Get("k")
	require.Equal(t, uint32(2), cas, "the counter is one for all namespaces")
	require.Equal(t, 3, a.Bytes())
	require.Equal(t, map[string][]byte{"k": []byte("12")}, a.Snapshot())

	a.hold()
	a.release()
	require.Equal(t, 1, a.Len())
	a.release()
	require.Equal(t, 0, a.Len(), "the data goes with the last host")
	require.Equal(t, 1, b.Len())
}

func TestStoreKeepsItsOwnCopy(t *testing.T) {
	ns := NewStore().Namespace("")
	value := []byte("old")
	ns.Set("k", value, 0)
	value[0] = 'X'
	got, _, _ := ns.Get("k")
	require.Equal(t, "old", string(got))
	ns.Set("k", []byte("new"), 0)
	require.Equal(t, "old", string(got), "a value that was read stays as it was")
}

func TestRestoreBringsEverythingBack(t *testing.T) {
	ns := NewStore().Namespace("")
	ns.Set("kept", []byte("1"), 0)
	ns.Set("changed", []byte("2"), 0)
	saved := ns.Save()
	for range 2 {
		require.True(t, ns.Set("changed", []byte("3"), 2))
		ns.Set("new", nil, 0)
		ns.Restore(saved)
		require.Equal(t, map[string][]byte{"kept": []byte("1"), "changed": []byte("2")}, ns.Snapshot())
		require.False(t, ns.Set("changed", nil, 3), "the write number is the old one")
		require.True(t, ns.Set("new", nil, 0))
		_, cas, _ := ns.Get("new")
		require.Equal(t, uint32(3), cas, "and so is the next")
		ns.Restore(saved)
	}
}
