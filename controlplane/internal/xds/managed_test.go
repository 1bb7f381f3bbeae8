package xds

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/stretchr/testify/require"
)

func TestManaged(t *testing.T) {
	f := newFixture(t)
	f.apply("one")
	connect := func(id, address string) *proxyClient {
		e := &proxyClient{f: f, node: &corev3.Node{Id: id, Metadata: metadata(t, map[string]any{"manage": address})}}
		e.connect()
		t.Cleanup(e.hangUp)
		e.accept("one")
		return e
	}
	first := connect("a", "127.0.0.1:9902")
	connect("a", "127.0.0.1:9902")          // its hot restart
	other := connect("a", "127.0.0.2:9902") // another one with the same id
	connect("b", "")
	f.eventually("all run it", func() bool {
		list := f.server.Ledger().Managed()
		for _, m := range list {
			if m.Runs != 1 || m.Peer == "" {
				return false
			}
		}
		return len(list) == 3
	})
	var got [][2]string
	for _, m := range f.server.Ledger().Managed() {
		got = append(got, [2]string{m.Node, m.Address})
	}
	require.Equal(t, [][2]string{{"a", "127.0.0.2:9902"}, {"a", "127.0.0.1:9902"}, {"b", ""}}, got)
	first.hangUp()
	other.hangUp()
	f.eventually("the hot restart alone is left", func() bool {
		list := f.server.Ledger().Managed()
		return len(list) == 2 && list[0].Address == "127.0.0.1:9902"
	})
}
