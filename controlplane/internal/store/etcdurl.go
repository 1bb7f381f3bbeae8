package store

import (
	"errors"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/storeurl"
)

var urlForm = storeurl.Form{
	Usage: "a store's URL is etcd://HOST:PORT,HOST:PORT,… or, for TLS, etcds://…, with USER@ before the hosts, " +
		"/PREFIX of the keys and ?ca=FILE&cert=FILE&key=FILE&server_name=NAME&password_file=FILE behind them where need be",
	Schemes:    map[string]storeurl.Scheme{"etcd": {}, "etcds": {TLS: true}},
	Parameters: []string{"password_file"},
}

// IsURL says whether a store is named by a URL, and not by a directory.
func IsURL(at string) bool { return strings.Contains(at, "://") }

// address reads a store's URL: what the client is started with, and what all keys begin
// with. Its errors hold nothing of what stands before the hosts.
func address(at string) (c clientv3.Config, root string, err error) {
	u, err := storeurl.Parse(at, &urlForm)
	if err != nil {
		return c, "", err
	}
	if u.Password != "" {
		return c, "", errors.New("a store's URL holds no password, since others can read it: name a file with ?password_file=FILE")
	}
	if c.Username = u.User; u.Query.Has("password_file") {
		if c.Password, err = storeurl.Secret(u.Query.Get("password_file")); err != nil {
			return c, "", err
		}
	}
	if (c.Username == "") != (c.Password == "") {
		return c, "", errors.New("etcd takes a user and a password: etcd://USER@HOST:PORT/?password_file=FILE")
	}
	if c.TLS, err = u.Config(); err != nil {
		return c, "", err
	}
	scheme := "http://"
	if u.TLS {
		scheme = "https://"
	}
	for _, host := range u.Hosts {
		c.Endpoints = append(c.Endpoints, scheme+host)
	}
	if root = u.Path; root == "" {
		root = "sluice"
	}
	return c, root + "/", nil
}
