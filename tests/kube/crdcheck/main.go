// Command crdcheck says what a Kubernetes API server would say to a manifest, with the API server's own packages.
//
//	crdcheck CRD.yaml... < requests.jsonl > answers.jsonl
//
// It first checks the CRDs as the server does on create (structural schema, CEL compiles and is within budget, printer
// columns parse); a bad CRD ends it with code 1. Then each line of stdin is a request, and one line answers it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// request is one manifest to create, or to put in the place of Old. Both are YAML as a user writes it.
type request struct {
	ID       string `json:"id"`
	Manifest string `json:"manifest"`
	Old      string `json:"old,omitempty"`
}

// problem is one error of the API server.
type problem struct {
	Field   string `json:"field"`
	Type    string `json:"type"`
	Message string `json:"message"`
}

// answer is what the server would do. Decoded is the JSON that kubectl makes of the manifest.
type answer struct {
	ID        string          `json:"id"`
	Accepted  bool            `json:"accepted"`
	Problems  []problem       `json:"problems"`
	Decoded   json.RawMessage `json:"decoded,omitempty"`
	Defaulted any             `json:"defaulted,omitempty"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "crdcheck:", err)
		os.Exit(1)
	}
}

func run(paths []string) error {
	kinds := map[string]*kind{}
	for _, path := range paths {
		loaded, err := loadKind(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		kinds[loaded.gvk.Kind] = loaded
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return fmt.Errorf("request: %w", err)
		}
		if err := out.Encode(check(kinds, asked)); err != nil {
			return err
		}
	}
	return lines.Err()
}
