package rules

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A credential is what follows its scheme: however the scheme and the spaces are
// written, it is one key.
func TestCredential(t *testing.T) {
	for text, want := range map[string]string{
		"Bearer k1":    "k1",
		"bearer k1":    "k1",
		"BEARER  k1":   "k1",
		"Bearer \t k1": "k1",
		"Bearer k1 k2": "k1",
		"Bearer k1,k2": "k1,k2",
		"Bearer K1":    "K1",
		"Bearer":       "", "Bearer ": "", "Bearerk1": "", "Basic k1": "", "": "", "n1 Bearer k1": "", " Bearer k1": "",
	} {
		got, present := credential(text, "bearer")
		require.Equal(t, want, got, text)
		require.Equal(t, want != "", present, text)
	}
}

// An address in a header is one key in each way that proxies write it.
func TestAddress(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.7":           "192.0.2.7",
		"192.0.2.7:4711":      "192.0.2.7",
		"::ffff:192.0.2.7":    "192.0.2.7",
		"192.0.2.7, 10.0.0.1": "192.0.2.7",
		`"192.0.2.7:80"`:      "192.0.2.7",
		"2001:db8::7":         "2001:db8::7",
		"2001:DB8:0::7":       "2001:db8::7",
		"[2001:db8::7]":       "2001:db8::7",
		"[2001:db8::7]:443":   "2001:db8::7",
		`"[2001:db8::7]:443"`: "2001:db8::7",
		"fe80::1%eth0":        "fe80::1",
		"2001:db8::7 ,x":      "2001:db8::7",
		"[2001:db8::7":        "2001:db8::7",
		"":                    "",
		"unknown":             "",
		"_hidden":             "",
		"192.0.2":             "",
		"192.0.2.7.1":         "",
		"192.0.2.07":          "",
		",192.0.2.7":          "",
		"[]":                  "",
		":":                   "",
		"localhost:80":        "",
	} {
		ip, present := address(text)
		require.Equal(t, want != "", present, text)
		if present {
			require.Equal(t, want, ip.String(), text)
		}
	}
}
