package docker

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
)

// maxAuth bounds the size of the password file, in bytes.
const maxAuth = 1 << 20

// hub is the registry of an image name that names no registry. hubKey is the key of hub in
// Docker's file.
const (
	hub    = "docker.io"
	hubKey = "index.docker.io"
)

// readAuth reads a file in the format of Docker's config.json. It maps the host of each
// registry to its credentials. No error quotes the contents of the file.
func readAuth(path string) (map[string]registry.AuthConfig, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !fi.Mode().IsRegular() || fi.Size() > maxAuth:
		return nil, fmt.Errorf("%s: not a file of at most %d bytes", path, maxAuth)
	case fi.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s: other users of this host can read or write it (mode %#o): chmod go= it", path, fi.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxAuth))
	if err != nil {
		return nil, err
	}
	var file struct {
		Auths       map[string]registry.AuthConfig `json:"auths"`
		CredsStore  string                         `json:"credsStore"`
		CredHelpers map[string]string              `json:"credHelpers"`
	}
	if json.Unmarshal(data, &file) != nil {
		return nil, fmt.Errorf("%s: not JSON in the format of Docker's config.json", path)
	}
	if file.CredsStore != "" || len(file.CredHelpers) > 0 {
		return nil, fmt.Errorf("%s: credsStore and credHelpers are programs, which the agent does not run: write auths", path)
	}
	out := map[string]registry.AuthConfig{}
	for key, a := range file.Auths {
		host := hostOf(key)
		if a.Auth != "" {
			pair, err := base64.StdEncoding.DecodeString(a.Auth)
			name, password, ok := strings.Cut(strings.TrimRight(string(pair), "\x00"), ":")
			if err != nil || !ok {
				return nil, fmt.Errorf("%s: auths[%q].auth: not the base64 of USER:PASSWORD", path, key)
			}
			a.Username, a.Password, a.Auth = name, password, ""
		}
		if a.Username == "" && a.IdentityToken == "" && a.RegistryToken == "" {
			return nil, fmt.Errorf("%s: auths[%q]: neither auth nor username nor a token", path, key)
		}
		a.ServerAddress = key
		out[host] = a
	}
	return out, nil
}

// hostOf returns the host in a key of the file. A key is a URL such as
// https://index.docker.io/v1/ or a host such as registry.example.
func hostOf(key string) string {
	if _, rest, ok := strings.Cut(key, "://"); ok {
		key = rest
	}
	host, _, _ := strings.Cut(key, "/")
	if slices.Contains([]string{hubKey, "registry-1.docker.io", hub}, host) {
		return hub
	}
	return host
}

// registryOf returns the host of an image's registry.
func registryOf(image string) string {
	first, _, ok := strings.Cut(image, "/")
	if ok && (strings.ContainsAny(first, ".:") || first == "localhost") {
		return hostOf(first)
	}
	return hub
}

// auth returns the credentials for a pull in the engine's encoding, or "" if there are
// none. It reads the file each time, because passwords change.
func (i images) auth(image string) (string, error) {
	if i.authFile == "" {
		return "", nil
	}
	all, err := readAuth(i.authFile)
	if err != nil {
		return "", fmt.Errorf("this node's passwords of registries (--docker-auth): %w", err)
	}
	a, ok := all[registryOf(image)]
	if !ok {
		return "", nil
	}
	return authconfig.Encode(a)
}
