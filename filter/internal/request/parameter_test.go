package request

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParameterIn(t *testing.T) {
	for query, want := range map[string]struct {
		value    string
		doubtful bool
	}{
		"p_q=1":       {"1", false},
		"x=2&p_q=1&y": {"1", false},
		"%70%5Fq=%31": {"1", false},
		"p_q":         {"", false},
		"p_q=1&p_q=1": {"1", false},
		"p_q=+a%2b":   {" a+", false}, "p_q=%3B1": {";1", false},
		"": {absent, false}, "p_q2=1": {absent, false}, "xp_q=1": {absent, false}, "x=p_q=1": {absent, false},

		"p_q=1&p_q=2": {"1", true},
		// Some split a query at ";" too.
		"p_q=1;x=2":       {"1", true},
		"p_q=1;":          {"1", true},
		"x=2;p_q=1":       {"1", true},
		"x=2;p_q=1&p_q=3": {"3", true},
		"p_q=1;p_q=2":     {"1", true},
		// Names without regard to case, lists, and what PHP makes of a name.
		"P_Q=1":        {"1", true},
		"P_Q=1&p_q=2":  {"2", true},
		"p_q[]=1":      {"1", true},
		"p_q%5B0%5D=1": {"1", true},
		"p.q=1":        {"1", true},
		"p+q=1":        {"1", true},
		"+p_q=1":       {"1", true}, "p[q=1": {"1", true}, "p_q%00x=1": {"1", true},
		// Rack 2 and qs drop brackets around a name; IIS knows escapes of its own.
		"[p_q]=1":      {"1", true},
		"%5B[p_q=1":    {"1", true},
		"p_q]=1":       {"1", true},
		"%u0070_q=1":   {"1", true},
		"%u0050.q[]=1": {"1", true},
		"%u0170_q=1":   {absent, false}, "%u00p_q=1": {absent, false},
	} {
		value, present, doubtful := parameterIn(query, "p_q")
		if !present {
			value = absent
		}
		require.Equal(t, want.value, value, query)
		require.Equal(t, want.doubtful, doubtful, query)
	}
}
