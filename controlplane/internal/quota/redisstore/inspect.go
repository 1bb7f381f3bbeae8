package redisstore

import (
	"net"
	"slices"
)

// Needs is what a store's URL asks of the place where it is used.
type Needs struct {
	Ports             []string // of the servers
	Files             []string
	TLS, CA, Password bool
}

// Inspect reads a URL without calling anybody.
func Inspect(url string) (Needs, error) {
	a, err := parseURL(url)
	if err != nil {
		return Needs{}, err
	}
	needs := Needs{TLS: a.tls, CA: a.query.Get("ca") != "", Password: a.password != ""}
	for _, host := range a.hosts {
		_, port, _ := net.SplitHostPort(host)
		needs.Ports = append(needs.Ports, port)
	}
	if a.form != single {
		needs.Ports = append(needs.Ports, defaultPort) // of servers that only the others name
	}
	slices.Sort(needs.Ports)
	needs.Ports = slices.Compact(needs.Ports)
	for _, name := range []string{"ca", "cert", "key", "sentinel_password_file"} {
		if file := a.query.Get(name); file != "" {
			needs.Files = append(needs.Files, file)
		}
	}
	return needs, nil
}
