package redisstore

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

	"github.com/redis/rueidis"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
)

// form is how the servers of a store stand together.
type form uint8

const (
	single form = iota
	sentinel
	cluster
)

// address is what a URL says.
type address struct {
	form     form
	tls      bool
	hosts    []string
	user     string
	password string
	master   string // Sentinel's name of the master
	database int
	query    url.Values
}

const (
	defaultPort         = "6379"
	defaultSentinelPort = "26379"
	defaultPrefix       = "sluice:"
	maxPrefix           = 64
	maxSecretFile       = 4 << 10
	maxPEM              = 1 << 20
)

// parameters are what may follow the question mark of a URL.
var parameters = []string{"ca", "cert", "key", "prefix", "sentinel_password_file", "sentinel_user", "server_name"}

var errForm = errors.New("a quota store's URL is redis://HOST:PORT, redis+sentinel://HOST:PORT,…/MASTER or " +
	"redis+cluster://HOST:PORT,…; rediss for TLS, valkey and valkeys for Valkey")

// parseURL reads a URL. Its errors hold nothing of what stands before the hosts.
func parseURL(text string) (*address, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return nil, errForm
	}
	a := &address{}
	if !a.scheme(strings.ToLower(scheme)) {
		return nil, errForm
	}
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	hosts := authority[strings.LastIndexByte(authority, '@')+1:]
	// net/url knows no lists of hosts; what it says of a text that it refuses
	// quotes the text.
	u, err := url.Parse("redis://" + strings.TrimSuffix(authority, hosts) + "host" + tail)
	if err != nil {
		return nil, errors.New("a quota store's URL has % in its user, password or path for characters of their own: " +
			"write them as %25, %40 for @, %2F for /, %3F for ?, or put the password into a file")
	}
	a.user = u.User.Username()
	a.password, _ = u.User.Password()
	if u.Fragment != "" {
		return nil, errors.New("a quota store's URL has no part after #: write # in a password as %23")
	}
	if err := a.addHosts(hosts); err != nil {
		return nil, err
	}
	if err := a.path(strings.Trim(u.Path, "/")); err != nil {
		return nil, err
	}
	return a, a.parameters(u.RawQuery)
}

// scheme reads what stands before ://, and reports whether it is known.
func (a *address) scheme(scheme string) bool {
	kind, suffix, _ := strings.Cut(scheme, "+")
	switch kind {
	case "redis", "valkey":
	case "rediss", "valkeys":
		a.tls = true
	default:
		return false
	}
	switch suffix {
	case "":
		a.form = single
	case "sentinel":
		a.form = sentinel
	case "cluster":
		a.form = cluster
	default:
		return false
	}
	return !strings.HasSuffix(scheme, "+")
}

func (a *address) addHosts(list string) error {
	port := defaultPort
	if a.form == sentinel {
		port = defaultSentinelPort
	}
	for host := range strings.SplitSeq(list, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), port)
		}
		name, number, err := net.SplitHostPort(host)
		if n, bad := strconv.ParseUint(number, 10, 16); err != nil || bad != nil || n == 0 || name == "" {
			return errors.New("a quota store's URL names its servers as HOST:PORT, more than one with commas between, IPv6 in brackets")
		}
		a.hosts = append(a.hosts, host)
	}
	if a.form == single && len(a.hosts) > 1 {
		return errors.New("redis:// names one server: several are redis+sentinel:// or redis+cluster://")
	}
	return nil
}

// path reads DATABASE, MASTER or MASTER/DATABASE.
func (a *address) path(path string) error {
	database := path
	if a.form == sentinel {
		a.master, database, _ = strings.Cut(path, "/")
		if a.master == "" {
			return errors.New("redis+sentinel:// takes the name that Sentinel has for the master: redis+sentinel://HOST:PORT,…/MASTER")
		}
	}
	if database == "" {
		return nil
	}
	n, err := strconv.ParseUint(database, 10, 16)
	if err != nil {
		return errors.New("the path of a quota store's URL is the number of a database")
	}
	if a.form == cluster && n != 0 {
		return errors.New("redis+cluster:// has no path: a Cluster has one database")
	}
	a.database = int(n)
	return nil
}

func (a *address) parameters(raw string) error {
	var err error
	if a.query, err = url.ParseQuery(raw); err != nil {
		return errors.New("what follows ? in a quota store's URL is not NAME=VALUE&NAME=VALUE")
	}
	for name, values := range a.query {
		if !slices.Contains(parameters, name) || len(values) > 1 {
			return fmt.Errorf("after ? a quota store's URL takes each of these once at most: %s", strings.Join(parameters, ", "))
		}
	}
	if prefix := a.prefix(); len(prefix) > maxPrefix || strings.ContainsFunc(prefix, unfitForPrefix) {
		return fmt.Errorf("prefix in a quota store's URL is at most %d ASCII characters without spaces and braces: "+
			"braces would put every key of a Cluster on one server", maxPrefix)
	}
	if !a.tls && (a.query.Has("ca") || a.query.Has("cert") || a.query.Has("key") || a.query.Has("server_name")) {
		return errors.New("ca, cert, key and server_name in a quota store's URL are for TLS: rediss://")
	}
	return nil
}

func unfitForPrefix(r rune) bool { return r <= ' ' || r > '~' || r == '{' || r == '}' }

// prefix is what all keys begin with.
func (a *address) prefix() string {
	if a.query.Has("prefix") {
		return a.query.Get("prefix")
	}
	return defaultPrefix
}

// secrets reads the files that hold passwords.
func (a *address) secrets(passwordFile string) (err error) {
	if passwordFile != "" {
		if a.password != "" {
			return errors.New("the quota store's password stands both in its URL and in a file: keep the file")
		}
		if a.password, err = secretFile(passwordFile); err != nil {
			return err
		}
	}
	return nil
}

func secretFile(name string) (string, error) {
	data, err := input.File(name, maxSecretFile)
	if err != nil {
		return "", fmt.Errorf("read the quota store's password: %w", err)
	}
	password := strings.TrimRight(string(data), "\r\n")
	if password == "" {
		return "", fmt.Errorf("read the quota store's password: %s is empty", name)
	}
	return password, nil
}

// option is what the client is started with.
func (a *address) option() (rueidis.ClientOption, error) {
	o := limited(clientOption(), a.form)
	o.InitAddress = a.hosts
	o.Username, o.Password, o.SelectDB = a.user, a.password, a.database
	o.ForceSingleClient = a.form == single
	if a.tls {
		var err error
		if o.TLSConfig, err = a.tlsConfig(); err != nil {
			return o, err
		}
	}
	if a.form != sentinel {
		return o, nil
	}
	o.Sentinel.MasterSet = a.master
	o.Sentinel.Dialer, o.Sentinel.TLSConfig = o.Dialer, o.TLSConfig
	o.Sentinel.TopologyRefreshInterval = refreshEvery
	// Sentinels ask for the servers' password unless the URL names another.
	o.Sentinel.Username, o.Sentinel.Password = a.user, a.password
	if a.query.Has("sentinel_user") {
		o.Sentinel.Username = a.query.Get("sentinel_user")
	}
	if name := a.query.Get("sentinel_password_file"); name != "" {
		password, err := secretFile(name)
		if err != nil {
			return o, err
		}
		o.Sentinel.Password = password
		if !a.query.Has("sentinel_user") {
			o.Sentinel.Username = ""
		}
	}
	return o, nil
}

func (a *address) tlsConfig() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.query.Get("server_name")}
	if name := a.query.Get("ca"); name != "" {
		pem, err := input.File(name, maxPEM)
		if err != nil {
			return nil, fmt.Errorf("read the CA of the quota store: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read the CA of the quota store: %s holds no certificate in PEM", name)
		}
	}
	if a.query.Has("cert") || a.query.Has("key") {
		pair, err := tls.LoadX509KeyPair(a.query.Get("cert"), a.query.Get("key"))
		if err != nil {
			return nil, fmt.Errorf("read the certificate for the quota store: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
