"""The program in the sandbox."""

if __name__ == "__main__":
    from labkit.guest.serving import main

    main()
