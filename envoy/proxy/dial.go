package proxy

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// Dial returns a connection to the first of the addresses, HOST:PORT each, that lets it
// connect. It tries them in turn, and from the first again after each loss.
func Dial(addresses []string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	list := make([]resolver.Address, len(addresses))
	for i, a := range addresses {
		list[i] = resolver.Address{Addr: a, ServerName: a} // whose certificate has to be its own
	}
	several := manual.NewBuilderWithScheme("several")
	several.InitialState(resolver.State{Addresses: list})
	return grpc.NewClient("several:///"+addresses[0], append(options, grpc.WithResolvers(several))...)
}
