// Package nodeid says which node ids the bearer of a client certificate may use.
//
// Its invariant: an id is granted for one name of the certificate, a DNS or URI
// SAN that is spelled out in it. The common name and names with a wildcard grant
// nothing. Without rules, the id must be that very name.
//
// It must never import the xDS server or the command line.
package nodeid

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/san"
)

// MaxBytes is longer than any id in use and short enough for a store's key. A
// longer SAN is passed over.
const MaxBytes = 1024

// Check says whether a node id is fit to be shown and compared: visible ASCII
// has neither control characters nor letters that only look alike.
func Check(id string) error {
	switch {
	case id == "":
		return errors.New("node id is empty: set node.id in the bootstrap or start Envoy with --service-node")
	case len(id) > MaxBytes:
		return fmt.Errorf("node id has %d bytes, at most %d are allowed", len(id), MaxBytes)
	case !visible(id):
		return fmt.Errorf("node id %.100q has other characters than visible ASCII, ! to ~", id)
	}
	return nil
}

func visible(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// Rules grant further ids. The zero value grants none.
type Rules struct{ grants []grant }

// grant is a line of the file.
type grant struct{ san, id san.Pattern }

// SAN returns the name in the certificate for which it may use the node id. The
// error says which ids it may use.
func (r *Rules) SAN(cert *x509.Certificate, id string) (string, error) {
	sans := names(cert)
	if slices.Contains(sans, id) {
		return id, nil
	}
	for _, g := range r.grants {
		for _, name := range sans {
			if caught, ok := g.san.Match(name); ok {
				if same, ok := g.id.Match(id); ok && same == caught {
					return name, nil
				}
			}
		}
	}
	return "", r.refusal(sans, id)
}

// names are the certificate's names that count.
func names(cert *x509.Certificate) []string {
	sans := append(san.DNS(cert), san.URIs(cert)...)
	return slices.DeleteFunc(sans, func(name string) bool {
		return len(name) > MaxBytes || !visible(name)
	})
}

// maxListed bounds what an error lists.
const maxListed = 5

func (r *Rules) refusal(sans []string, id string) error {
	if len(sans) == 0 {
		return fmt.Errorf("node id %q is not in its certificate, which has no DNS or URI name without a wildcard: issue one with the SAN %q", id, id)
	}
	allowed := slices.Clone(sans)
	for _, g := range r.grants {
		for _, name := range sans {
			if caught, ok := g.san.Match(name); ok {
				allowed = append(allowed, strings.ReplaceAll(g.id.Text, san.Capture, caught))
			}
		}
	}
	return fmt.Errorf(`node id %q is not its certificate's, with which it may be %s: set node.id to that, or write "%s %s" into the file of serve --node-names`,
		id, list(allowed), sans[0], id)
}

func list(ids []string) string {
	slices.Sort(ids)
	ids = slices.Compact(ids)
	more := ""
	if len(ids) > maxListed {
		more = fmt.Sprintf(" or one of %d others", len(ids)-maxListed)
		ids = ids[:maxListed]
	}
	return strings.Join(ids, " or ") + more
}
