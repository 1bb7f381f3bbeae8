//go:build etcd

package docs_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/certtest"
	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/build/servertest"
)

// TestOperatingPageOnEtcd runs the page's commands with those that move its store to an etcd of
// three members over TLS, where two serves share it.
func TestOperatingPageOnEtcd(t *testing.T) {
	t.Parallel()
	cert, key := certtest.Files(t)
	free, err := ports.Free(2)
	require.NoError(t, err)
	addresses := []string{"127.0.0.1:28080", fmt.Sprint("127.0.0.1:", free[0]), "127.0.0.1:28000",
		fmt.Sprint("127.0.0.1:", free[1])}
	for i, m := range servertest.StartEtcd(t, 3, "--cert-file", cert, "--key-file", key) {
		addresses = append(addresses, fmt.Sprintf("10.0.0.%d:2379", i+1), m.Addr())
	}
	p := newPage(t, "etc/sluice", addresses...)
	p.etcd = true
	ca, err := os.ReadFile(cert)
	require.NoError(t, err)
	p.write(t, "etc/sluice/ca-etcd.pem", string(ca), 0o600)
	p.run(t, document(t, "docs/operating.md"))
}
