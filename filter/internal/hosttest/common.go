package hosttest

import (
	"fmt"
	"strings"
)

// CommonRules writes rules like those that the fast path is for.
func (t *Tape) CommonRules() string {
	var rules []string
	capacity := Pick(t, 65536, 65536, 1+t.Next()%40)
	for i := range Pick(t, 1, 1, 1, 2, 3) {
		var limits []string
		for _, per := range []string{"1s", "2500ms", "1m", "7d"}[t.Next()%2:][:1+t.Next()%3] {
			limits = append(limits, fmt.Sprintf(`{"requests":%d,"per":%q%s}`, t.Next()%9, per,
				Pick(t, ``, `,"offset":"500ms"`, `,"algorithm":"fixed_window_per_key"`, `,"algorithm":"fixed_window_per_key"`)))
		}
		rules = append(rules, fmt.Sprintf(`{"name":"r%d","key":[%s],"limits":[%s],"capacity":%d%s%s}`, i,
			Pick(t, `{"header":"u"}`, `{"header":"u"}`, ``, `{"client_ip":{}}`, `{"client_ip":{"v4_prefix":24}}`),
			strings.Join(limits, ","), capacity,
			Pick(t, ``, ``, `,"cost":2`, `,"cost":[{"match":{"methods":["POST"]},"cost":2}]`, `,"match":{"methods":["GET"]}`, `,"missing_key":"deny"`, `,"missing_key":"share"`),
			Pick(t, ``, ``, ``, ``, `,"mode":"shadow"`, `,"count_denied":true`, `,"on_full":"deny"`, `,"on_full":"allow"`,
				`,"on_error":"deny"`, `,"enforce_percent":50`)))
	}
	return strings.Join(rules, ",") + t.exempt()
}
