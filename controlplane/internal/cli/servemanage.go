package cli

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
)

// serveManageOptions say how serve asks proxies about counters.
type serveManageOptions struct {
	token string
	ca    string
	allow string
}

// AddFlags adds the flags of serve.
func (o *serveManageOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.token, "manage-token-file", "", "`FILE` with the bearer token whose SHA-256 is the policy's manage.token_sha256, for sluice counters and explain; read again when it changes")
	f.StringVar(&o.allow, "manage-allow", manage.DefaultAllow, "`NETWORK|NAME,…` of the proxies' management listeners: the token goes nowhere else")
	f.StringVar(&o.ca, "manage-ca", "", "`FILE` with the certificates that vouch for management listeners; default: the system's; read again when it changes")
}

// fleet returns what asks the proxies, nil without a token. Own are the
// addresses that serve itself listens on.
func (o *serveManageOptions) fleet(cmd *cobra.Command, log *slog.Logger, own ...net.Addr) (*manage.Fleet, error) {
	if o.token == "" {
		for _, flag := range []string{"manage-allow", "manage-ca"} {
			if cmd.Flags().Changed(flag) {
				return nil, usageError(fmt.Errorf("--%s needs --manage-token-file", flag), "without a token no proxy is asked")
			}
		}
		return nil, nil
	}
	allow, err := manage.ParseAllow(o.allow)
	if err != nil {
		return nil, usageError(fmt.Errorf("--manage-allow: %w", err), "give networks and names separated by commas, for example 10.0.0.0/8,edge.example.com")
	}
	files := []string{o.token}
	if o.ca != "" {
		files = append(files, o.ca)
	}
	credentials, err := openFiles(log, "management token", readCredentials, files...)
	if err != nil {
		return nil, err
	}
	return manage.NewFleet(manageRules(allow, own), credentials.Get), nil
}

// manageRules let the token go to what is allowed, but to no listener of this process.
func manageRules(allow manage.Allow, own []net.Addr) manage.Rules {
	rules := manage.Rules{Allow: &allow}
	for _, a := range own {
		if at, err := netip.ParseAddrPort(a.String()); err == nil {
			rules.Own = append(rules.Own, at)
		}
	}
	return rules
}

// readCredentials reads the contents of the token's file and of --manage-ca.
func readCredentials(contents [][]byte) (manage.Credentials, error) {
	token, err := parseToken(contents[0])
	if err != nil {
		return manage.Credentials{}, errors.New("--manage-token-file " + err.Error())
	}
	c := manage.Credentials{Token: token, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}
	if len(contents) > 1 {
		c.TLS.RootCAs, err = parsePool("--manage-ca", contents[1])
	}
	return c, err
}
