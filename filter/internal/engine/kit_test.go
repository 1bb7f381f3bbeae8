package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

type (
	proxy = hosttest.Proxy
	cell  = hosttest.Cell
)

func report(v *decide.Verdict) string { return string(respond.AppendReport(nil, v)) }

func fields(style policy.Headers, v *decide.Verdict) (list [][2]string) {
	f := respond.Fields{Style: style}
	for _, field := range f.Append(nil, v) {
		list = append(list, [2]string{field.Name, field.Value})
	}
	return list
}

func compileJSON(t testing.TB, host Host, rules string) *Engine {
	t.Helper()
	return New(hosttest.Policy(t, rules), host, Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
}

// operate returns the answer to an operation.
func operate(t *testing.T, e *Engine, op Operation) string {
	t.Helper()
	result, err := e.Operate(op)
	require.NoError(t, err)
	return string(result)
}

// used returns what each window of each rule that matched has counted.
func used(v *decide.Verdict) (counts [][]uint32) {
	for _, s := range v.Subjects {
		counts = append(counts, counted(s))
	}
	return counts
}

func counted(s *decide.Subject) (counts []uint32) {
	for i := range s.Rule.Subjects.Order {
		w, u := s.Window(i)
		counts = append(counts, w.Count(u, s.Record.Now))
	}
	return counts
}

// retries are what a hit has; see package decide.
const retries = 256
