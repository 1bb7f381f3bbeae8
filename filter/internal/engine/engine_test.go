package engine

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
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
	view, _ := s.View()
	for i := range s.Rule.Finder.Order {
		w, u := view.Window(i)
		counts = append(counts, w.Count(u, s.Record.Now))
	}
	return counts
}

// retries are what a hit has; see package decide.
const retries = 256

// matched are the names of the rules that the verdict is of.
func matched(v *decide.Verdict) (names []string) {
	for i := range v.Subjects {
		names = append(names, v.Subjects[i].Rule.Policy.Name)
	}
	return names
}

// The index changes nothing but the time it takes: the same rules match, in
// policy order.
func TestIndexLeavesNoRuleOut(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	hosts := []string{"a", "b.a", "c.b.a", "*.a", "*.b.a", "*.x", "[::1]", "b.a.", "xa"}
	paths := []string{"/*", "/v1", "/v1*", "/v1/*", "/v1/a*", "/v1/a/b", "/v2/*", "*", "=*", "~/v[0-9]+.*", "/v1/ab*",
		"/v1/a%20b", "/v", "/v*"}
	for round := range 60 {
		var list []string
		for i := range 1 + dice.IntN(150) {
			var match []string
			for field, list := range map[string][]string{"hosts": hosts, "paths": paths} {
				if n := dice.IntN(4); n > 0 && round%4 > 0 {
					var texts []string
					for range n {
						texts = append(texts, fmt.Sprintf("%q", list[dice.IntN(len(list))]))
					}
					match = append(match, fmt.Sprintf("%q:[%s]", field, strings.Join(texts, ",")))
				}
			}
			if dice.IntN(5) == 0 {
				match = append(match, `"methods":["POST"]`)
			}
			list = append(list, fmt.Sprintf(`{"name":"r%d","limits":[],"match":{%s}}`, i, strings.Join(match, ",")))
		}
		p := hosttest.New()
		e := compileJSON(t, p, strings.Join(list, ","))
		for range 60 {
			host := strings.Replace(hosts[dice.IntN(len(hosts))], "*", "q", 1)
			path := strings.NewReplacer("*", "x", "~", "", "=", "").Replace(paths[dice.IntN(len(paths))])
			p.With(":authority", host+[]string{"", "", ":x", ":@b.a"}[dice.IntN(4)], ":path",
				[]string{"", "/;", ""}[dice.IntN(3)]+path+[]string{"", "/", "/b", "?q=/v1",
					";x"}[dice.IntN(5)], ":method", []string{"GET", "POST"}[dice.IntN(2)])
			switch dice.IntN(20) {
			case 0:
				delete(p.Headers, ":authority")
			case 1:
				delete(p.Headers, ":path")
			}
			var want []string
			req := rules.NewRequest(p)
			req.Begin()
			for i := range e.policy.Rules {
				r := &e.policy.Rules[i]
				if m := rules.Compile(&req.Request, &r.Match, false); m.Holds(&req) {
					want = append(want, r.Name)
				}
			}
			require.Equal(t, want, matched(e.Decide()), "%v", p.Headers)
		}
	}
}
