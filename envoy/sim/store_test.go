package sim

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The rules of shared_data.cc in proxy-wasm-cpp-host, step by step.
func TestStoreRules(t *testing.T) {
	// A step is "set KEY VALUE CAS", with a "!" in front if it must fail, or "get KEY VALUE CAS".
	for name, c := range map[string]struct {
		next  uint32
		steps []string
	}{
		"a key that does not exist is created whatever the number": {
			next:  1,
			steps: []string{"set a 1 4294967294", "get a 1 1", "set b 2 7", "get b 2 2"},
		},
		"a number that is never issued is create-if-absent": {
			next:  1,
			steps: []string{"set a 1 4294967294", "!set a 2 4294967294", "get a 1 1"},
		},
		"zero overwrites": {1, []string{"set a 1 0", "set a 2 0", "get a 2 2"}},
		"the number must be that of the last write": {
			next:  1,
			steps: []string{"set a 1 0", "set a 2 1", "!set a 3 1", "get a 2 2"},
		},
		"one counter for all keys, and a mismatch takes no number": {
			next:  1,
			steps: []string{"set a 1 0", "set b 1 0", "!set a 2 9", "set a 3 1", "get a 3 3", "get b 1 2"},
		},
		"the counter skips zero": {
			next:  math.MaxUint32,
			steps: []string{"set a 1 0", "get a 1 4294967295", "set a 2 4294967295", "get a 2 1"},
		},
	} {
		s := NewStore()
		s.next = c.next
		ns := s.Namespace("vm")
		for _, step := range c.steps {
			var verb, key, value string
			var cas uint32
			_, err := fmt.Sscan(step, &verb, &key, &value, &cas)
			require.NoError(t, err)
			if verb == "get" {
				got, number, _ := ns.Get(key)
				require.Equal(t, []any{value, cas}, []any{string(got), number}, "%s: %s", name, step)
			} else {
				require.Equal(t, verb == "set", ns.Set(key, []byte(value), cas), "%s: %s", name, step)
			}
		}
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
