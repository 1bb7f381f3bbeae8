package limit

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// builtAlgorithms are the algorithms of this package and the name the vectors
// have for each; layered_aligned is several of them on one key.
var builtAlgorithms = map[string]string{
	"FixedWindow":       "fixed_aligned",
	"FixedWindowPerKey": "fixed_perkey",
}

// notYetBuilt are the vectors' names of algorithms that this package lacks.
var notYetBuilt = []string{
	"sliding_log", "sliding_counter", "token_bucket", "layered_token", "gcra", "leaky_meter",
}

type vector struct {
	ID      string          `json:"id"`
	Algo    string          `json:"algo"`
	Profile string          `json:"profile"`
	Cfg     json.RawMessage `json:"cfg"`
	Steps   []vectorStep    `json:"steps"`
}

type vectorStep struct {
	Kind          string
	T, Step       int64
	N, Miss       int
	Op            string
	Cost          uint32
	Allow         *bool
	Used, Retry   any
	Expires       *int64
	Remaining     *uint32
	Every, Repeat json.RawMessage // none of the built algorithms' cases has these
}

func readVectors(t *testing.T) []vector {
	b, err := os.ReadFile("testdata/vectors.json")
	require.NoError(t, err)
	var all []vector
	require.NoError(t, json.Unmarshal(b, &all))
	return all
}

func (v *vector) windows(t *testing.T) []Window {
	type cfg struct {
		Limit  uint32
		Window int64
		Offset int64
		Unit   string
	}
	var list []cfg
	if v.Algo == "layered_aligned" {
		require.NoError(t, json.Unmarshal(v.Cfg, &list), v.ID)
	} else {
		var one cfg
		require.NoError(t, json.Unmarshal(v.Cfg, &one), v.ID)
		list = []cfg{one}
	}
	windows := make([]Window, len(list))
	for i, c := range list {
		require.Empty(t, c.Unit, v.ID)
		windows[i] = aligned(c.Limit, c.Window*ms, c.Offset*ms)
		if v.Algo == "fixed_perkey" {
			windows[i].Algorithm = FixedWindowPerKey
		}
	}
	return windows
}

// record is one key's record as plain values.
type record struct {
	windows []Window
	usage   []Usage
	last    int64
}

func (r *record) step(t *testing.T, id string, s vectorStep) (allowed bool) {
	name := fmt.Sprintf("%s at %d ms", id, s.T)
	now := max(s.T*ms, r.last)
	pass := now
	for i, w := range r.windows {
		r.usage[i] = w.Roll(r.usage[i], r.last, now)
		if at := w.Check(r.usage[i], now, s.Cost); at == Never || pass == Never {
			pass = Never
		} else {
			pass = max(pass, at)
		}
	}
	r.last = now
	if s.Op == "hit" && pass == now {
		for i, w := range r.windows {
			r.usage[i] = w.Add(r.usage[i], now, s.Cost)
		}
	}
	if s.Allow != nil {
		require.Equal(t, *s.Allow, pass == now, name)
	}
	switch retry := s.Retry.(type) {
	case string:
		require.Equal(t, Never, pass, name)
	case float64:
		require.Equal(t, s.T*ms+int64(retry)*ms, pass, name)
	}
	used := make([]any, len(r.windows))
	for i, w := range r.windows {
		used[i] = float64(r.usage[i].Used)
		if s.Remaining != nil {
			require.Equal(t, *s.Remaining, w.Remaining(r.usage[i]), name)
		}
		if s.Expires != nil {
			require.Equal(t, *s.Expires*ms, w.Expiry(r.usage[i], now), name)
		}
	}
	switch want := s.Used.(type) {
	case []any:
		require.Equal(t, want, used, name)
	case float64:
		require.Equal(t, want, used[0], name)
	}
	return pass == now
}

func TestVectors(t *testing.T) {
	run := map[string]int{}
	for _, v := range readVectors(t) {
		if v.Profile != "core" || (v.Algo != "layered_aligned" && v.Algo != "fixed_aligned" && v.Algo != "fixed_perkey") {
			continue
		}
		run[v.Algo]++
		t.Run(v.ID, func(t *testing.T) {
			r := &record{windows: v.windows(t)}
			r.usage = make([]Usage, len(r.windows))
			for _, s := range v.Steps {
				if s.Kind != "seq" {
					require.Contains(t, []string{"hit", "peek"}, s.Op)
					r.step(t, v.ID, s)
					continue
				}
				missed := 0
				for i := range s.N {
					if !r.step(t, v.ID, vectorStep{T: s.T + int64(i)*s.Step, Op: "hit", Cost: 1}) {
						missed++
					}
				}
				require.Equal(t, s.Miss, missed)
			}
		})
	}
	require.Equal(t, map[string]int{"fixed_aligned": 7, "fixed_perkey": 10, "layered_aligned": 4}, run)
}

// TestEveryVectorIsRunOrListed fails when an algorithm is added to this package
// and its cases are still listed as not built, or are nowhere.
func TestEveryVectorIsRunOrListed(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "window.go", nil, 0)
	require.NoError(t, err)
	inCode := 0
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		spec := g.Specs[0].(*ast.ValueSpec)
		if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "Algorithm" {
			continue
		}
		for _, s := range g.Specs {
			for _, n := range s.(*ast.ValueSpec).Names {
				inCode++
				require.Contains(t, builtAlgorithms, n.Name,
					"%s is an algorithm now: run its vectors and take their name off notYetBuilt", n.Name)
			}
		}
	}
	require.Equal(t, len(builtAlgorithms), inCode)

	known := map[string]bool{"layered_aligned": true}
	for _, name := range builtAlgorithms {
		known[name] = true
	}
	listed := map[string]bool{}
	for _, name := range notYetBuilt {
		require.False(t, known[name], "%s is built and run: take it off notYetBuilt", name)
		listed[name] = false
	}
	for _, v := range readVectors(t) {
		if known[v.Algo] {
			continue
		}
		require.Contains(t, listed, v.Algo, "%s: an algorithm nobody has heard of", v.ID)
		listed[v.Algo] = true
	}
	for name, used := range listed {
		require.True(t, used, "no vector has algo %s", name)
	}
}
