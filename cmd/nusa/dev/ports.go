package dev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// The port plan. The first hundred ports belong to the global server. Each region has the
// next hundred, with ten ports for each server.
const (
	portGRPC = iota
	portRaft
	portGossip
	portProbe
	portHTTP
	// portsUsed is the number of ports that a regional server uses.
	portsUsed

	// The first port of the global server is also for gRPC.
	portGlobalHTTP = 1
	portsGlobal    = 2
)

func (o Options) port(hundred, server, offset int) int {
	return o.Port + hundred*portsPerRegion + server*portsPerServer + offset
}

// addr returns a loopback address of the port plan.
func (o Options) addr(hundred, server, offset int) string {
	return loopback(o.port(hundred, server, offset))
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// checkPorts tries every port of the plan before anything starts. The errors of the roles
// would name flags that `nusa dev` does not have.
func (o Options) checkPorts(ctx context.Context) error {
	n := network.Host()
	for port := range o.ports {
		err := tryPort(ctx, n, port)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("--port %d: %s is in use (another nusa dev?): %s", o.Port, loopback(port), o.otherPort(ctx, n))
		case err != nil:
			return fmt.Errorf("--port %d: %s cannot be opened: %w", o.Port, loopback(port), err)
		}
	}
	return nil
}

// ports yields the ports of the plan, ascending.
func (o Options) ports(yield func(int) bool) {
	for offset := range portsGlobal {
		if !yield(o.port(0, 0, offset)) {
			return
		}
	}
	for i := range o.Regions {
		for s := range o.Servers {
			for offset := range portsUsed {
				if !yield(o.port(i+1, s, offset)) {
					return
				}
			}
		}
	}
}

// tryPort opens a port for streams and for datagrams.
func tryPort(ctx context.Context, n network.Net, port int) error {
	l, err := n.Listen(ctx, loopback(port))
	if err != nil {
		return err
	}
	defer l.Close()
	p, err := n.ListenPacket(ctx, loopback(port))
	if err != nil {
		return err
	}
	return p.Close()
}

// otherPort suggests a first port with which all ports of the plan are free. It stays below
// the ports that the system uses for outgoing connections.
func (o Options) otherPort(ctx context.Context, n network.Net) string {
	span := portsPerRegion * (len(o.Regions) + 1)
	for base := o.Port + span; base+span < 32768; base += span {
		try, free := o, true
		try.Port = base
		for port := range try.ports {
			free = free && tryPort(ctx, n, port) == nil
		}
		if free {
			return fmt.Sprintf("choose another first port, such as --port %d", base)
		}
	}
	return "choose another first port"
}
