// Package storeurl reads URLs of stores: SCHEME://USER:PASSWORD@HOST:PORT,…/PATH?NAME=VALUE&….
//
// Its invariant: no error shows what may be a password. It must never import a store.
package storeurl

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
)

// Form is the URLs that a kind of store takes.
type Form struct {
	Usage      string // says what a URL looks like, for errors
	Schemes    map[string]Scheme
	Parameters []string // besides those of TLS
}

// Scheme is what stands before ://.
type Scheme struct {
	Port string // of hosts without one; empty: each host needs one
	TLS  bool
}

// URL is a URL in parts.
type URL struct {
	Scheme   string
	TLS      bool
	Hosts    []string // HOST:PORT
	User     string
	Password string // of the URL
	Path     string // without / at its ends
	Query    url.Values
}

// ofTLS are the parameters for TLS.
var ofTLS = []string{"ca", "cert", "key", "server_name"}

const (
	maxPEM    = 1 << 20
	maxSecret = 4 << 10
)

// Parse reads a URL.
func Parse(text string, f *Form) (*URL, error) {
	scheme, rest, _ := strings.Cut(text, "://")
	u := &URL{Scheme: strings.ToLower(scheme)}
	s, known := f.Schemes[u.Scheme]
	if !known {
		return nil, errors.New(f.Usage)
	}
	u.TLS = s.TLS
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	hosts := authority[strings.LastIndexByte(authority, '@')+1:]
	// net/url reads one host only, and its errors quote the text.
	parsed, err := url.Parse("store://" + strings.TrimSuffix(authority, hosts) + "host" + tail)
	if err != nil {
		return nil, errors.New("a store's URL has % in its user, password or path for characters of their own: " +
			"write them as %25, %40 for @, %2F for /, %3F for ?, or put the password into a file")
	}
	if parsed.Fragment != "" {
		return nil, errors.New("a store's URL has no part after #: write # in a password as %23")
	}
	u.User, u.Path = parsed.User.Username(), strings.Trim(parsed.Path, "/")
	u.Password, _ = parsed.User.Password()
	for host := range strings.SplitSeq(hosts, ",") {
		if err := u.addHost(host, s.Port); err != nil {
			return nil, err
		}
	}
	return u, u.readQuery(parsed.RawQuery, f)
}

func (u *URL) addHost(host, port string) error {
	if _, _, err := net.SplitHostPort(host); err != nil && port != "" {
		host = net.JoinHostPort(strings.Trim(host, "[]"), port)
	}
	name, number, err := net.SplitHostPort(host)
	if n, bad := strconv.ParseUint(number, 10, 16); err != nil || bad != nil || n == 0 || name == "" {
		return errors.New("a store's URL names its servers as HOST:PORT, more than one with commas between, IPv6 in brackets")
	}
	u.Hosts = append(u.Hosts, host)
	return nil
}

func (u *URL) readQuery(raw string, f *Form) error {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return errors.New("a store's URL has something else than NAME=VALUE&NAME=VALUE after ?")
	}
	u.Query = query
	takes := slices.Sorted(slices.Values(slices.Concat(ofTLS, f.Parameters)))
	for name, values := range u.Query {
		switch {
		case !slices.Contains(takes, name), len(values) > 1:
			return fmt.Errorf("after ? a store's URL takes each of these once at most: %s", strings.Join(takes, ", "))
		case slices.Contains(ofTLS, name) && !u.TLS:
			return fmt.Errorf("%s are for TLS: %s", strings.Join(ofTLS, ", "), f.Usage)
		case slices.Contains(ofTLS, name) && values[0] == "":
			return fmt.Errorf("%s= in a store's URL is empty: give it a value, or leave it out", name)
		}
	}
	return nil
}

// Secret reads a file that holds a password.
func Secret(file string) (string, error) {
	data, err := input.File(file, maxSecret)
	if err != nil {
		return "", fmt.Errorf("read the store's password: %w", err)
	}
	password := strings.TrimRight(string(data), "\r\n")
	if password == "" {
		return "", fmt.Errorf("read the store's password: %s is empty", file)
	}
	return password, nil
}

// Config is the TLS configuration of the URL, nil if its scheme is without TLS. A renewed
// certificate is read for the next connection.
func (u *URL) Config() (*tls.Config, error) {
	if !u.TLS {
		return nil, nil //nolint:nilnil // see above
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.Query.Get("server_name")}
	if file := u.Query.Get("ca"); file != "" {
		pem, err := input.File(file, maxPEM)
		if err != nil {
			return nil, fmt.Errorf("read the store's CA: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read the store's CA: %s has no certificate in PEM", file)
		}
	}
	if !u.Query.Has("cert") && !u.Query.Has("key") {
		return c, nil
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(u.Query.Get("cert"), u.Query.Get("key"))
		if err != nil {
			return nil, fmt.Errorf("read the certificate for the store: %w", err)
		}
		return &pair, nil
	}
	_, err := c.GetClientCertificate(nil)
	return c, err
}
