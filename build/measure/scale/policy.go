package scale

import (
	"bytes"
	"fmt"
	"strings"
)

// policyOf writes a policy of so many rules as short as they come: 10,000 of them
// stay below the one MiB that a policy may have. The limit tells one revision from
// another. Each rule is for a path of its own.
func policyOf(rules, limit int) []byte {
	var b bytes.Buffer
	b.WriteString("version: 1\nrules:\n")
	for i := range rules {
		fmt.Fprintf(&b, `- {name: r%d, match: {paths: ["/v%d/*"]}, key: [client_ip], limits: [%d/1s], capacity: 64}`+"\n", i, i, limit)
	}
	return b.Bytes()
}

// policyJSON is such a policy as proxies get it, of 10 a second each.
func policyJSON(rules int) []byte {
	var list []string
	for i := range rules {
		list = append(list, fmt.Sprintf(`{"name":"r%d","match":{"paths":["/v%d/*"]},"key":["client_ip"],"limits":["10/1s"],"capacity":64}`, i, i))
	}
	return []byte(`{"version":1,"rules":[` + strings.Join(list, ",") + `]}`)
}

// requestsFor writes requests of 1,000 clients in turn, each for one of the rules,
// 1 ms apart.
func requestsFor(rules, n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `{"at_ms":%d,"path":"/v%d/orders","client_ip":"10.0.%d.%d"}`+"\n", 1_700_000_000_000+i, i*7%rules, i%1000/250, i%250)
	}
	return b.Bytes()
}
