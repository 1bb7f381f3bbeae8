package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/redisstore/replies"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/storeurl"
)

// form is how the servers of a store stand together, as schemes say it.
type form string

const (
	single   form = ""
	sentinel form = "sentinel"
	cluster  form = "cluster"
)

// address is what a URL says.
type address struct {
	*storeurl.URL
	form     form
	master   string // Sentinel's name of the master
	database int
}

const (
	serverPort    = "6379"
	sentinelPort  = "26379"
	defaultPrefix = "sluice:"
	maxPrefix     = 64
)

var urlForm = storeurl.Form{
	Usage: "a quota store's URL is redis://HOST:PORT, redis+sentinel://HOST:PORT,…/MASTER or " +
		"redis+cluster://HOST:PORT,…; rediss for TLS, valkey and valkeys for Valkey",
	Schemes: map[string]storeurl.Scheme{
		"redis": {Port: serverPort}, "redis+sentinel": {Port: sentinelPort}, "redis+cluster": {Port: serverPort},
		"valkey": {Port: serverPort}, "valkey+sentinel": {Port: sentinelPort}, "valkey+cluster": {Port: serverPort},

		"rediss": {Port: serverPort, TLS: true}, "rediss+sentinel": {Port: sentinelPort, TLS: true},
		"rediss+cluster": {Port: serverPort, TLS: true},

		"valkeys": {Port: serverPort, TLS: true}, "valkeys+sentinel": {Port: sentinelPort, TLS: true},
		"valkeys+cluster": {Port: serverPort, TLS: true},
	},
	Parameters: []string{"prefix", "sentinel_password_file", "sentinel_user"},
}

// parseURL reads a URL. Its errors hold nothing of what stands before the hosts.
func parseURL(text string) (*address, error) {
	u, err := storeurl.Parse(text, &urlForm)
	if err != nil {
		return nil, err
	}
	_, how, _ := strings.Cut(u.Scheme, "+")
	a := &address{URL: u, form: form(how)}
	if a.form == single && len(a.Hosts) > 1 {
		return nil, errors.New("redis:// names one server: several are redis+sentinel:// or redis+cluster://")
	}
	if prefix := a.prefix(); len(prefix) > maxPrefix || strings.ContainsFunc(prefix, unfitForPrefix) {
		return nil, fmt.Errorf("prefix in a quota store's URL is at most %d ASCII characters without spaces and braces: "+
			"braces would put every key of a Cluster on one server", maxPrefix)
	}
	if err := a.readPath(); err != nil {
		return nil, err
	}
	return a, nil
}

// readPath reads DATABASE, MASTER or MASTER/DATABASE.
func (a *address) readPath() error {
	database := a.Path
	if a.form == sentinel {
		a.master, database, _ = strings.Cut(a.Path, "/")
		if a.master == "" {
			return errors.New("redis+sentinel:// takes the name that Sentinel has for the master: " +
				"redis+sentinel://HOST:PORT,…/MASTER")
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

func unfitForPrefix(r rune) bool { return r <= ' ' || r > '~' || r == '{' || r == '}' }

// prefix is what all keys begin with.
func (a *address) prefix() string {
	if a.Query.Has("prefix") {
		return a.Query.Get("prefix")
	}
	return defaultPrefix
}

// readPassword reads the file with the password.
func (a *address) readPassword(passwordFile string) (err error) {
	if passwordFile == "" {
		return nil
	}
	if a.Password != "" {
		return errors.New("the quota store's password stands both in its URL and in a file: keep the file")
	}
	a.Password, err = storeurl.Secret(passwordFile)
	return err
}

// CheckURL says what is wrong with a URL. It connects to nothing.
func CheckURL(url string) error {
	_, err := parseURL(url)
	return err
}

// What the client is started with comes from three places: clientOption is the same for all stores, address.option adds
// what the URL says, and Options.apply what it does not say.

const (
	// dialTimeout bounds connecting, TLS and authentication together.
	dialTimeout = 2 * time.Second
	// pingEvery is how long a connection is silent before it is tried. If it does not
	// answer for silentFor, it is given up.
	pingEvery = time.Second
	silentFor = 2 * time.Second
	// refreshEvery is how often the masters are asked for again. Failovers are
	// announced; an announcement may be missed.
	refreshEvery = 2 * time.Second
	// maxReply is far more than a value takes, maxClusterReply more than the slots of a Cluster of hundreds of nodes.
	maxReply, maxClusterReply = 1 << 20, 16 << 20
)

// clientOption is for rueidis without its retries and its cache: one connection carries the commands of all callers in
// pipelines. It adds 1.4 MB to a binary and one module. Measured beside it, go-redis adds 4.2 MB, and reaches a third
// (one by one) to two thirds (64 at once) of the swaps per second. valkey-go is made from rueidis, release by release.
func clientOption() rueidis.ClientOption {
	return rueidis.ClientOption{
		DisableRetry:      true, // a swap may have been carried out
		DisableCache:      true,
		AlwaysPipelining:  true, // else a late answer costs the connection
		PipelineMultiplex: -1,   // one connection a server: longer pipelines
		Dialer:            net.Dialer{Timeout: dialTimeout, KeepAlive: pingEvery},
		ConnWriteTimeout:  silentFor,
		ClientName:        "sluice",
		ClusterOption:     rueidis.ClusterOption{ShardsRefreshInterval: refreshEvery, MaxMovedRedirections: 5},
	}
}

// option is what the client is started with.
func (a *address) option() (rueidis.ClientOption, error) {
	o := clientOption()
	most := int64(maxReply)
	if a.form == cluster {
		most = maxClusterReply
	}
	o.DialCtxFn = replies.Dial(most)
	o.InitAddress = a.Hosts
	o.Username, o.Password = a.User, a.Password
	o.SelectDB = a.database
	o.ForceSingleClient = a.form == single
	var err error
	o.TLSConfig, err = a.Config()
	if err != nil || a.form != sentinel {
		return o, err
	}
	o.Sentinel.MasterSet = a.master
	o.Sentinel.Dialer, o.Sentinel.TLSConfig = o.Dialer, o.TLSConfig
	o.Sentinel.TopologyRefreshInterval = refreshEvery
	o.Sentinel.Username, o.Sentinel.Password, err = a.sentinelLogin()
	return o, err
}

// sentinelLogin is how Sentinels know us: as the servers do, unless the URL names another user
// or password.
func (a *address) sentinelLogin() (user, password string, err error) {
	user, password = a.User, a.Password
	if name := a.Query.Get("sentinel_password_file"); name != "" {
		user = ""
		password, err = storeurl.Secret(name)
	}
	if a.Query.Has("sentinel_user") {
		user = a.Query.Get("sentinel_user")
	}
	return user, password, err
}

// apply sets what a URL does not say.
func (o *Options) apply(option *rueidis.ClientOption) {
	if o.Socket != "" {
		option.InitAddress = []string{o.Socket}
	}
	if o.AnyName && option.TLSConfig != nil {
		option.TLSConfig.InsecureSkipVerify = true // the next line verifies all but the name
		option.TLSConfig.VerifyConnection = verifyChain(option.TLSConfig.RootCAs)
	}
	if o.Sentinel != nil {
		option.Sentinel.Username = o.Sentinel.Username()
		option.Sentinel.Password, _ = o.Sentinel.Password()
	}
}

// verifyChain verifies that the authorities vouch for a server's certificate.
func verifyChain(authorities *x509.CertPool) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		intermediates := x509.NewCertPool()
		for _, c := range state.PeerCertificates[1:] {
			intermediates.AddCert(c)
		}
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: authorities, Intermediates: intermediates})
		return err
	}
}

// connect is rueidis.NewClient that ends with the context.
func connect(ctx context.Context, option rueidis.ClientOption) (rueidis.Client, error) {
	type connected struct {
		client rueidis.Client
		err    error
	}
	c := make(chan connected, 1)
	go func() {
		client, err := rueidis.NewClient(option)
		if err != nil && client != nil {
			client.Close()
		}
		c <- connected{client, err}
	}()
	select {
	case got := <-c:
		return got.client, got.err
	case <-ctx.Done():
		go func() {
			if got := <-c; got.err == nil {
				got.client.Close()
			}
		}()
		return nil, ctx.Err()
	}
}
