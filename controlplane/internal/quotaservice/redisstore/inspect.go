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
	needs := Needs{TLS: a.TLS, CA: a.Query.Get("ca") != "", Password: a.Password != ""}
	for _, host := range a.Hosts {
		_, port, _ := net.SplitHostPort(host)
		needs.Ports = append(needs.Ports, port)
	}
	if a.form != single {
		needs.Ports = append(needs.Ports, serverPort) // of servers that only the others name
	}
	slices.Sort(needs.Ports)
	needs.Ports = slices.Compact(needs.Ports)
	for _, name := range []string{"ca", "cert", "key", "sentinel_password_file"} {
		if file := a.Query.Get(name); file != "" {
			needs.Files = append(needs.Files, file)
		}
	}
	return needs, nil
}
