package docs_test

import "testing"

// blockedSetup starts what docs/blocked.md takes for granted: a control plane and an Envoy,
// whose policy is the page's, but for the override.
const blockedSetup = "```sh\n" + `install -D build/out/sluice usr/local/bin/sluice
mkdir -p var/log/envoy
printf only-for-this-page > management.token
sed -i 's/port: [0-9]*/port: 9902/' policy.yaml
sed '/overrides:/d' policy.yaml > first.yaml
sluice serve --data serve.data --xds 127.0.0.1:18000 --http 127.0.0.1:18080 \
    --manage-token-file management.token >>"$ROOT/serve.log" 2>&1 &
until sluice status >status.txt 2>&1; do sleep 0.1; done
sluice apply -f first.yaml
sluice render envoy --xds 127.0.0.1:18000 --node edge-1 -f first.yaml --listen 127.0.0.1:10000 \
    --upstream 127.0.0.1:8080 --admin 127.0.0.1:9901 --manage 127.0.0.1:9902 \
    --access-log /var/log/envoy/access.log --wasm "$ROOT/build/out/sluice.wasm" > envoy.yaml
envoy -c envoy.yaml &
until curl -sf -o ready.txt http://127.0.0.1:9901/ready; do sleep 0.2; done
for i in 1 2 3 4; do curl -s -o answer.txt -H 'x-user-id: alice' http://127.0.0.1:10000/; done
` + "```\n\n"

// TestBlockedPage runs every command of the page for a client that is denied.
func TestBlockedPage(t *testing.T) {
	t.Parallel()
	p := newPage(t, "")
	d := document(t, "docs/blocked.md")
	d.text = blockedSetup + d.text
	p.run(t, d, "SLUICE_SERVER="+p.rewrite.Replace("http://127.0.0.1:18080"))
}
