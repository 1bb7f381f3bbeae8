package importer_test

import (
	"fmt"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// A key without a value counts each of its values for itself. A value that routes choose makes a rule that is off.
func ExampleEnvoyRatelimit() {
	config := importer.File{Name: "shop.yaml", Text: []byte(`
domain: shop
descriptors:
- key: remote_address
  rate_limit: {unit: minute, requests_per_unit: 5}
- key: generic_key
  value: slow
  rate_limit: {unit: second, requests_per_unit: 100}
`)}
	made, err := importer.EnvoyRatelimit([]importer.File{config}, policy.ScopeCluster, importer.EnvoyOptions{})
	fmt.Printf("%s", made.Policy)
	fmt.Println(len(made.Notes), "note,", err)
	// Output:
	// # Imported from envoyproxy/ratelimit. Read the comments: they say what differs.
	// version: 1
	// domain: shop
	// rules:
	//   - name: remote_address
	//     scope: cluster
	//     key: [{client_ip: {v4_prefix: 32, v6_prefix: 128}}]
	//     limits: [5/minute]
	//   # Off: It is for requests for which Envoy sends generic_key = slow. Envoy's routes choose the
	//   #   value of the key generic_key, and they are not in this file: give them with --routes FILE.
	//   # Remove mode once you have dealt with that.
	//   - name: generic_key_slow
	//     scope: cluster
	//     limits: [100/second]
	//     mode: "off"
	// 1 note, <nil>
}

// A location's limit is a rule for its paths. The rate is in the zone, and so is the key.
func ExampleNginx() {
	config := importer.File{Name: "nginx.conf", Text: []byte(`
limit_req_zone $binary_remote_addr zone=one:1m rate=5r/s;
server { server_name www.example; }
server {
  server_name a.example;
  location /login { limit_req zone=one burst=9 nodelay; }
}
`)}
	made, err := importer.Nginx([]importer.File{config}, policy.ScopeProxy, nil)
	fmt.Printf("%s", made.Policy)
	fmt.Println(len(made.Notes), "notes,", err)
	// Output:
	// # Imported from nginx. Read the comments: they say what differs.
	// version: 1
	// rules:
	//   - name: one
	//     match: {hosts: [a.example], paths: [/login*]}
	//     key: [{client_ip: {v4_prefix: 32, v6_prefix: 128}}]
	//     algorithm: token_bucket
	//     limits: [{requests: 5, per: 1s, burst: 10}]
	//     response: {status: 503}
	// 0 notes, <nil>
}
