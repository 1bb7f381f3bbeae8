package storeurl

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/certtest"
)

func config(query string) (func() ([][]byte, error), error) {
	u, err := Parse("db://a:1/?"+query, &Form{Schemes: map[string]Scheme{"db": {TLS: true}}})
	if err != nil {
		return nil, err
	}
	c, err := u.Config()
	if err != nil {
		return nil, err
	}
	return func() ([][]byte, error) {
		pair, err := c.GetClientCertificate(nil)
		if err != nil {
			return nil, err
		}
		return pair.Certificate, nil
	}, nil
}

func TestBadFiles(t *testing.T) {
	_, key := certtest.Files(t)
	for query, want := range map[string]string{
		"ca=" + key: "has no certificate",
		"ca=":       "ca= in a store's URL is empty",
		"ca=/no":    "read the store's CA",
		"cert=/no":  "read the certificate for the store",
		"key=/no":   "read the certificate for the store",
	} {
		_, err := config(query)
		require.ErrorContains(t, err, want, query)
	}
}

// A client's certificate that was renewed is taken at the next handshake.
func TestRenewedCertificate(t *testing.T) {
	cert, key := certtest.Files(t)
	get, err := config("cert=" + cert + "&key=" + key)
	require.NoError(t, err)
	first, err := get()
	require.NoError(t, err)
	newer, newKey := certtest.Files(t)
	require.NoError(t, os.Rename(newer, cert))
	_, err = get()
	require.ErrorContains(t, err, "read the certificate for the store", "half of it is renewed")
	require.NoError(t, os.Rename(newKey, key))
	second, err := get()
	require.NoError(t, err)
	require.NotEqual(t, first, second)
}
