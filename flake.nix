{
  description = "Baton: turns the machines you own into one LLM server";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
        "aarch64-darwin"
      ];
      eachSystem =
        make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
    in
    {
      # What `make` needs beside the Python packages, which it installs into .venv itself: their
      # wheels (vLLM, torch, MLX) are the ones that are tested.
      devShells = eachSystem (pkgs: {
        default = pkgs.mkShell {
          packages = [
            pkgs.python311
            pkgs.gnumake
            pkgs.gcc
            pkgs.nodejs
          ]
          ++ pkgs.lib.optionals pkgs.stdenv.isLinux [
            pkgs.iproute2
            pkgs.nftables
          ];
          # Binary wheels look for these outside the Nix store.
          LD_LIBRARY_PATH = pkgs.lib.optionalString pkgs.stdenv.isLinux (
            pkgs.lib.makeLibraryPath [
              pkgs.stdenv.cc.cc.lib
              pkgs.zlib
              pkgs.numactl
            ]
          );
        };
      });
    };
}
