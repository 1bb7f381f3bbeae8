package envoy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddress(t *testing.T) {
	for _, tc := range []struct {
		text         string
		listen, dial address // zero = refused
		reason       string
	}{
		{text: "127.0.0.1:8080", listen: address{"127.0.0.1", 8080}, dial: address{"127.0.0.1", 8080}},
		{text: "[::1]:8080", listen: address{"::1", 8080}, dial: address{"::1", 8080}},
		{text: "localhost:80", listen: address{"127.0.0.1", 80}, dial: address{"localhost", 80}},
		{text: "api.example.com:80", dial: address{"api.example.com", 80}, reason: "not on a name"},
		{text: ":8080", listen: address{"0.0.0.0", 8080}, reason: "want a host and a port"},
		{text: "127.0.0.1:0", listen: address{"127.0.0.1", 0}, reason: "want a host and a port"},
		{text: "127.0.0.1", reason: "has no port"},
		{text: "127.0.0.1:http", reason: "the port is not a number"},
		{text: "127.0.0.1:65536", reason: "the port is above 65535"},
		{text: "::1:8080", reason: "between brackets"},
		{text: "[127.0.0.1]:8080", reason: "no IPv6 address between the brackets"},
		{text: "http://127.0.0.1:8080", reason: "is a URL"},
		{text: "a b:80", reason: "has a blank in it"},
		{text: "a\nadmin:80", reason: "has a blank in it"},
		{text: "", reason: "has no port"},
	} {
		t.Run(tc.text, func(t *testing.T) {
			check := func(want, got address, err error) {
				if want == (address{}) {
					require.ErrorContains(t, err, tc.reason)
				} else {
					require.NoError(t, err)
					require.Equal(t, want, got)
				}
			}
			got, err := listenAddress(tc.text)
			check(tc.listen, got, err)
			got, err = dialAddress(tc.text)
			check(tc.dial, got, err)
		})
	}
}
