package client

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func versionCommand() *cobra.Command {
	s := &cli.Settings{}
	var server bool
	c := &cobra.Command{
		Use: "version", Short: "Print the version of this binary, and with --server of the server", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			own := &nusav1.InfoResponse{Role: "client", Version: serve.Version}
			if !server {
				return c.Print(own, func(w *term.Screen) {
					fmt.Fprintf(w, "nusa %s (%s, %s/%s)\n", serve.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
				})
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			info, err := nusav1.NewSystemClient(c.Conn).Info(ctx, &nusav1.InfoRequest{})
			if err != nil {
				return err
			}
			return c.Print(info, func(w *term.Screen) {
				fmt.Fprintf(w, "client %s\nserver %s  %s\n", serve.Version, info.GetVersion(), strings.Join(strings.Fields(info.GetRole()+" "+info.GetName()+" "+info.GetRegion()), " "))
				if id := info.GetFederationId(); id != "" {
					fmt.Fprintf(w, "federation id %s\n", id)
				}
				for _, a := range info.GetAlarms() {
					fmt.Fprintf(w, "%s%s\n", w.Bad("alarm: "), cli.WithProgram(term.OneLine(a), w.Program))
				}
			})
		}),
	}
	s.Bind(c)
	c.Flags().BoolVar(&server, "server", false, "ask the server too")
	return c
}
