package cli

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/reload"
)

// nodeNameOptions say which node ids a proxy's certificate may use.
type nodeNameOptions struct {
	file string
	any  bool
}

// AddFlags adds the flags of serve.
func (o *nodeNameOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.file, "node-names", "", "`FILE` with lines SAN ID: which node ids a certificate may use beside its own names")
	f.BoolVar(&o.any, "any-node-id", false, "let every proxy use any node id: each can then pose as all others")
}

// identify returns the rule, which reads the file again when it changes. It
// holds for streams that begin afterwards.
func (o *nodeNameOptions) identify(log *slog.Logger) (func(*x509.Certificate, string) (string, error), error) {
	if o.any && o.file != "" {
		return nil, usageError(errors.New("--any-node-id and --node-names exclude each other"), "--node-names alone is the safe one")
	}
	if o.any {
		log.Warn("INSECURE: --any-node-id lets each proxy pose as any other, and roll back its policy",
			"hint", "write which certificate may use which ids into a file and give it with --node-names")
		return func(*x509.Certificate, string) (string, error) { return "", nil }, nil
	}
	if o.file == "" {
		return new(access.NodeIDs).SAN, nil
	}
	rules, err := reload.Open(log, func(contents [][]byte) (*access.NodeIDs, error) {
		return access.ParseNodeIDs(o.file, contents[0])
	}, o.file)
	if err != nil {
		return nil, fmt.Errorf("read --node-names: %w", err)
	}
	return func(cert *x509.Certificate, node string) (string, error) { return rules.Get().SAN(cert, node) }, nil
}
