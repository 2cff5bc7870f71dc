package client

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func uiCommand() *cobra.Command {
	s := &cli.Settings{}
	noBrowser := false
	c := &cobra.Command{
		Use: "ui", Short: "Open the web page of the server in a browser", Args: cli.Positional(),
		Long: `Prints the address of the server's web page, and opens it in a browser if this machine
has one: $BROWSER, or that of the desktop. The page asks for an access token (nusa auth
token create), unless everybody may use the server.`,
		Example: "  nusa ui\n  nusa ui --addr g1.example.com --no-browser",
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			address, err := pageAddress(ctx, c)
			if err != nil {
				return err
			}
			if c.Output != "table" {
				n := &doc.Node{Kind: doc.Map}
				n.Add("url", &doc.Node{Kind: doc.String, Text: address})
				return c.PrintTree(n)
			}
			err = c.Print(nil, func(w *term.Screen) { fmt.Fprintln(w, address) })
			if err == nil && !noBrowser {
				cli.OpenBrowser(context.WithoutCancel(c.Ctx), address) // without a browser the user has the address
			}
			return err
		}),
	}
	s.Bind(c)
	c.Flags().BoolVar(&noBrowser, "no-browser", false, "only print the address")
	return c
}

// pageAddress returns the address of the web page of the called server.
func pageAddress(ctx context.Context, c *cli.Session) (string, error) {
	var server peer.Peer
	info, err := nusav1.NewSystemClient(c.Conn).Info(ctx, &nusav1.InfoRequest{}, grpc.Peer(&server))
	if err != nil {
		return "", err
	}
	if info.GetHttpAddress() == "" {
		return "", fmt.Errorf("server %s has no HTTP port: start it with --http-addr, or use --addr of another server", info.GetName())
	}
	host, port, err := net.SplitHostPort(info.GetHttpAddress())
	if err != nil {
		return "", fmt.Errorf("server %s says that its HTTP address is %q: %w", info.GetName(), info.GetHttpAddress(), err)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = hostOf(c, &server)
	}
	scheme := "http"
	if info.GetHttpTls() {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/ui/", nil
}

// hostOf returns the host of the called server, as the user wrote it if that is clear.
func hostOf(c *cli.Session, server *peer.Peer) string {
	if all := c.Servers(); len(all) == 1 {
		if host, _, err := net.SplitHostPort(all[0]); err == nil {
			return host
		}
	}
	if server.Addr != nil {
		if host, _, err := net.SplitHostPort(server.Addr.String()); err == nil {
			return host
		}
	}
	return "127.0.0.1" // the server of a Unix socket
}
