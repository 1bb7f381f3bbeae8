package store

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

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
)

// parameters are what may follow the question mark of a store's URL.
var parameters = []string{"ca", "cert", "key", "password_file", "server_name"}

var errURL = errors.New("a store's URL is etcd://HOST:PORT,HOST:PORT,… or, for TLS, etcds://…, with USER@ before the hosts, " +
	"/PREFIX of the keys and ?ca=FILE&cert=FILE&key=FILE&server_name=NAME&password_file=FILE behind them where need be")

// IsURL says whether a store is named by a URL, and not by a directory.
func IsURL(at string) bool { return strings.Contains(at, "://") }

const maxFile = 1 << 20

// address reads a store's URL: what the client is started with, and what all keys begin
// with. Its errors hold nothing of what stands before the hosts.
func address(at string) (c clientv3.Config, root string, err error) {
	scheme, rest, _ := strings.Cut(at, "://")
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	hosts := authority[strings.LastIndexByte(authority, '@')+1:]
	u, err := url.Parse("etcd://" + strings.TrimSuffix(authority, hosts) + "host" + tail) // net/url knows no lists of hosts
	if err != nil || scheme != "etcd" && scheme != "etcds" || u.Fragment != "" {
		return c, "", errURL
	}
	if _, has := u.User.Password(); has {
		return c, "", errors.New("a store's URL holds no password, since others can read it: name a file with ?password_file=FILE")
	}
	if c.Endpoints, err = endpoints(hosts, scheme); err != nil {
		return c, "", err
	}
	query, err := readQuery(u.RawQuery)
	if err != nil {
		return c, "", err
	}
	c.Username = u.User.Username()
	if file := query.Get("password_file"); file != "" {
		text, err := input.File(file, maxFile)
		if err != nil {
			return c, "", fmt.Errorf("read etcd's password: %w", err)
		}
		c.Password = strings.TrimRight(string(text), "\r\n")
	}
	if (c.Username == "") != (c.Password == "") {
		return c, "", errors.New("etcd takes a user and a password: etcd://USER@HOST:PORT/?password_file=FILE, with a FILE that is not empty")
	}
	if scheme == "etcds" {
		c.TLS, err = tlsOf(query)
	} else if query.Has("ca") || query.Has("cert") || query.Has("key") || query.Has("server_name") {
		err = errors.New("ca, cert, key and server_name in a store's URL are for TLS: etcds://")
	}
	if root = strings.Trim(u.Path, "/"); root == "" {
		root = "sluice"
	}
	return c, root + "/", err
}

func readQuery(raw string) (url.Values, error) {
	query, err := url.ParseQuery(raw)
	good := err == nil
	for name, values := range query {
		good = good && slices.Contains(parameters, name) && len(values) == 1 && values[0] != ""
	}
	if !good {
		return nil, fmt.Errorf("after ? a store's URL takes each of these once at most: %s", strings.Join(parameters, ", "))
	}
	return query, nil
}

func endpoints(hosts, scheme string) (list []string, err error) {
	for host := range strings.SplitSeq(hosts, ",") {
		name, port, err := net.SplitHostPort(host)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || name == "" {
			return nil, errors.New("a store's URL names etcd's members as HOST:PORT, more than one with commas between, IPv6 in brackets")
		}
		list = append(list, map[string]string{"etcd": "http://", "etcds": "https://"}[scheme]+host)
	}
	return list, nil
}

func tlsOf(query url.Values) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: query.Get("server_name")}
	if file := query.Get("ca"); file != "" {
		pem, err := input.File(file, maxFile)
		if err != nil {
			return nil, fmt.Errorf("read etcd's CA: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read etcd's CA: %s holds no certificate in PEM", file)
		}
	}
	if query.Has("cert") || query.Has("key") {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { // it may have been renewed
			pair, err := tls.LoadX509KeyPair(query.Get("cert"), query.Get("key"))
			if err != nil {
				return nil, fmt.Errorf("read the certificate for etcd: %w", err)
			}
			return &pair, nil
		}
		if _, err := c.GetClientCertificate(nil); err != nil {
			return nil, err
		}
	}
	return c, nil
}
