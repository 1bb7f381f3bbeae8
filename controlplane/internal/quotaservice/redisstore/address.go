package redisstore

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

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
